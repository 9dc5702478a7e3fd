"""Every knob, declared once: from this table follow the command line, the ini file and the marker."""
