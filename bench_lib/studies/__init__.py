"""Studies: cases measured together, with their figures side by side.

``asked`` reads a person's wishes and makes the cases.  ``figures`` has one case in figures, and the
one table of all studies.  Each other module makes figures into rows, and rows into a table and
sentences, without a device; ``ab``, ``selfcheck`` and ``contexts`` measure in their own order.
"""
