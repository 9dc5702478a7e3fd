"""The HTML page: its content as data, and the template, the style and the script that display it."""
