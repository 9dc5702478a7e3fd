"""The nouns: what was measured, counted and judged, as frozen records. Imports neither torch nor pytest."""
