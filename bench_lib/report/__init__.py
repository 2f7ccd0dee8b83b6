"""What people read the morning after: a night gathered once, and put on a page, in a comment.

``night`` gathers what a page is about; ``html`` makes one file of it that needs no network.
"""
