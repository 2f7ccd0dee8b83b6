"""Reports of a night: its data is gathered once, for the page, for Markdown and for the terminal.

``night`` gathers a page's data; ``html`` makes one file of it that needs no network.
"""
