"""The one place that deals out time: how long each benchmark measures, and which tests run once more."""
