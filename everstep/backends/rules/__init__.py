"""What every cluster of ours does alike: how nodes and devices break and heal, who gets a place, who owns a
folder and a generation, when a fence holds. Pure: no clock, no books, no processes; a backend brings what is
and carries out the answer.
"""
