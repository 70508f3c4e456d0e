"""The report: one HTML file that needs no network.

`document` turns a plan and what is known about it into one plain document (JSON), and `html` puts it,
the style and the scripts into one file. The scripts draw all that is visible from the document.
"""
