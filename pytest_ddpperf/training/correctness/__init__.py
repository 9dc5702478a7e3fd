"""The correctness pass: does a strategy train what a single process would have trained? Importable without torch."""
