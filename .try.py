import sys; sys.path.insert(0,'.')
import oncemore
from tests.queries.work import run_all_steps
from oncemore.queries.recorded_runs import *
from oncemore.simulate.what_if import *
from oncemore.simulate.totals import *
with oncemore.open("memory:") as engine:
    run_all_steps(engine)
    runs = load_recorded_runs(engine.store, RunFilter(0, 4e9))
    sims=[WhatIf().simulate_run(r) for r in runs]
    for r,s in zip(runs,sims):
        print(r.step,r.state,s.state,[a.began-b.began for a,b in zip(s.attempts,r.attempts)],len(s.attempts)==len(r.attempts), [a.delay_s for a in s.attempts],[a.delay_s for a in r.attempts],[a.outcome for a in r.attempts])
    print(sum_runs(sims))
