"""What fault codes mean: NVIDIA's XIDs and SXIDs, Ascend's and ModelArts' codes, as data.

A reporter often gives a code and no more. `with_meaning` fills in the data of that code, at the edges where
facts are made. The core never reads these tables, so recorded facts do not change with the data.
"""
