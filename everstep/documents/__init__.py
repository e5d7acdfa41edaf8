"""What people wrote, before anybody knows which dialect it is: text to plain values, merging, problems.

Whatever comes in, the only error that comes out is `InvalidSpec`: one line that names each field.
"""
