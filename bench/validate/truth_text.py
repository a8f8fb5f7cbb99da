"""truth_text.py: the CSV of bench/validate/truth and bench/validate/auto as the text that these programs print."""
import os

import auto_rows
import tables
import truth_rows


def truth(table, to):
    tables.write(os.path.join(to, table.name + ".txt"), truth_rows.report(truth_rows.rows_of(table.rows), table.head))


def auto(table, to):
    tables.write(os.path.join(to, table.name + ".txt"), auto_rows.report(auto_rows.rows_of(table.rows), table.head))
