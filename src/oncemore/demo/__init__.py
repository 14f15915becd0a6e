"""Six demonstrations that run real servers and processes on this machine (`oncemore demo`).

    pipeline  orders are charged, booked, filed and announced; the program is killed three times and finishes
    retry     seven calls to a server that fails on purpose, with each wait and its reason
    kfm-loop  the reference scenarios of the KFM loop, each replayed from its log
    lit       a review platform with a failing Core and a locked database
    nova-cat  spectra from an archive that throttles, stalls and sends broken files
    exoarmur  an agent on a bus of three NATS servers, one of which is killed

A demo is one module `<name>_demo.py`, or a folder if it needs several processes. `terminal.py`,
`local_server.py`, `child_processes.py`, `effect_counts.py` and `summary_lines.py` are shared. Demos may
import every other package; only `oncemore.cli` may import a demo.
"""
