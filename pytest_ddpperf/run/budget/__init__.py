"""The code that distributes time: how long each benchmark measures, and which tests run again."""
