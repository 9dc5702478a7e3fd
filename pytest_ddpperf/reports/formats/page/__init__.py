"""The HTML page: what it shows as data, and the template, the style and the script that show it."""
