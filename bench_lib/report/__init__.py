"""The reports of the morning after: a night gathered once, and put on a page, in a comment.

``night`` gathers a page's data; ``html`` makes one file of it that needs no network.
"""
