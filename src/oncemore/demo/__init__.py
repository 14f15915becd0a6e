"""See it work: six stories, each told by real parts on this machine.

    pipeline  orders are charged, booked, filed and told; the program is killed in the middle, and finishes
    retry     seven calls to a flaky server, the waits and the reasons
    kfm-loop  the reference scenarios of the KFM loop, each replayed from its log
    lit       a review platform whose Core fails and whose database is locked
    nova-cat  spectra from an archive that throttles, stalls and sends broken files
    exoarmur  an agent on a bus of three servers, one of which is killed; hosts and streams are counted

The first one plays with three processes, so that nobody has to take our word for anything:

    story.py     conducts: starts, kills, shows; knows what happened from the two logs only
    world.py     everybody else: a provider that fails, a webhook's desk, and the recorder of what they did
    pipeline.py  the user's program, which is copied out and killed

and `tally.py` counts at the end what really happened, from the recorder, the table and the folder.
"""
