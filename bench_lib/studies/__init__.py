"""Studies: cases measured together, with their figures side by side.

``asked`` parses lists that users type, and makes the cases.  ``figures`` has a case's figures, and
a column for each.  The other modules turn figures into rows, and rows into a table and sentences,
without a device; ``ab``, ``bisect`` and ``selfcheck`` measure in their own order.
"""
