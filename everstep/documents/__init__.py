"""Reading for all dialects: text to plain values, merging, problems with the field's name.

The only error is `InvalidSpec`: one line that names each field.
"""
