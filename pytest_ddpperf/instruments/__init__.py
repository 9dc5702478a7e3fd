"""What reads a quantity on a rank: clocks and memory. Nothing here is inside a step that is timed."""
