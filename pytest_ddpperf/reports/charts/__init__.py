"""Charts of reports: a chart is data that is made from a results document, and any renderer can draw it."""
