------------------------------- MODULE Leases -------------------------------
\* Leases and clocks. A job belongs to its worker for Lease ticks, by the clock of the database. The worker renews that in
\* time, and counts by its own clock from when it has sent the statement. The server goes away, its clock jumps, and
\* reapers begin just after that. A reaper sweeps in two steps: it compares the clocks, and then ends attempts.
EXTENDS Naturals

CONSTANTS
    Workers,
    Slow,      \* whether statements take any time; otherwise they are done within a tick
    Outages,   \* how often the server goes away
    Jumps,     \* how often the clock of the database jumps
    Freezes,   \* how often a worker stands still
    Deaths,    \* how often a worker dies
    Off

VARIABLES
    up, calm,   \* the server can be reached, and since how many ticks
    place,      \* of the job: waiting, running, ended
    holder,     \* the worker in its row
    lease,      \* how many ticks the lease has left, by the clock of the database
    elapsed,    \* how many it has left in truth
    renewed,    \* whether it was renewed since the server started
    wire,       \* the statement of each worker: none, claim, renew; how old it is; whether it is served
    proc,       \* the process of each worker: none, runs, done
    trust,      \* how many ticks each worker trusts its lease
    given,      \* the workers that have given their attempt up, and will release it
    mode,       \* of each worker: lives, frozen, gone
    age,        \* of the reaper: ticks since it has reconnected
    compared,   \* whether it has compared the clocks in this sweep
    jump,       \* whether the clock has jumped, and the reaper does not know: no, unseen
    doubt,      \* for how many ticks it does not trust the clocks
    innocent,   \* whether an attempt was lost although its worker lived and was prompt
    ends, left
vars == <<up, calm, place, holder, lease, elapsed, renewed, wire, proc, trust, given, mode, age, compared, jump, doubt,
          innocent, ends, left>>

Rule(name) == name \notin Off
Can(fault) == left[fault] > 0
Use(fault) == left' = [left EXCEPT ![fault] = @ - 1]
Lease == 3
Trusted == 2
Reconnect == 3
Idle == [is |-> "none", old |-> 0, served |-> FALSE]
Cap(n, most) == IF n < most THEN n ELSE most
Less(n) == IF n > 0 THEN n - 1 ELSE 0
Own(w) == place = "running" /\ holder = w

Init ==
    /\ up = TRUE /\ calm = Reconnect
    /\ place = "waiting" /\ holder = "none" /\ lease = 0 /\ elapsed = 0 /\ renewed = TRUE
    /\ wire = [w \in Workers |-> Idle]
    /\ proc = [w \in Workers |-> "none"]
    /\ trust = [w \in Workers |-> 0]
    /\ given = {}
    /\ mode = [w \in Workers |-> "lives"]
    /\ age = Reconnect /\ compared = FALSE /\ jump = FALSE /\ doubt = 0
    /\ innocent = FALSE /\ ends = 0
    /\ left = [outages |-> Outages, jumps |-> Jumps, freezes |-> Freezes, deaths |-> Deaths]

-----------------------------------------------------------------------------
\* Workers.

Send(w) ==
    /\ mode[w] = "lives" /\ up /\ wire[w] = Idle /\ w \notin given
    /\ \/ proc[w] = "none" /\ place = "waiting" /\ wire' = [wire EXCEPT ![w].is = "claim"]
       \/ proc[w] = "runs" /\ trust[w] < Trusted /\ wire' = [wire EXCEPT ![w].is = "renew"]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, proc, trust, given, mode, age, compared, jump, doubt,
                   innocent, ends, left>>

Serve(w) ==
    /\ up /\ wire[w].is # "none" /\ ~wire[w].served
    /\ IF (wire[w].is = "claim" /\ place = "waiting") \/ (wire[w].is = "renew" /\ Own(w))
       THEN /\ place' = "running" /\ holder' = w /\ lease' = Lease /\ elapsed' = Lease /\ renewed' = TRUE
            /\ wire' = [wire EXCEPT ![w].served = TRUE]
       ELSE /\ wire' = [wire EXCEPT ![w] = Idle]  \* Nothing to claim, or the attempt is another worker's.
            /\ UNCHANGED <<place, holder, lease, elapsed, renewed>>
    /\ UNCHANGED <<up, calm, proc, trust, given, mode, age, compared, jump, doubt, innocent, ends, left>>

Answer(w) ==
    /\ mode[w] = "lives" /\ wire[w].served
    /\ LET sent == IF Rule("count from the sending") THEN wire[w].old ELSE 0
           until == IF sent < Trusted THEN Trusted - sent ELSE 0
       IN IF wire[w].is = "claim" /\ until = 0
          THEN given' = given \cup {w} /\ UNCHANGED <<proc, trust>>  \* Too late to begin.
          ELSE /\ proc' = [proc EXCEPT ![w] = IF wire[w].is = "claim" THEN "runs" ELSE @]
               /\ trust' = [trust EXCEPT ![w] = IF until > @ THEN until ELSE @]
               /\ UNCHANGED given
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, mode, age, compared, jump, doubt, innocent, ends, left>>

Unknown(w) == Own(w) /\ proc[w] = "none" /\ w \notin given /\ wire[w] = Idle

Recover(w) ==  \* The answer of its claim was lost.
    /\ mode[w] = "lives" /\ up /\ Unknown(w)
    /\ proc' = [proc EXCEPT ![w] = "runs"]
    /\ trust' = [trust EXCEPT ![w] = Trusted]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, given, mode, age, compared, jump, doubt, innocent,
                   ends, left>>

Untrusted(w) == proc[w] # "none" /\ trust[w] = 0 /\ Rule("kill what can't be trusted")

GiveUp(w) ==  \* The worker kills the process before another one may run the job, and will release the attempt.
    /\ mode[w] = "lives" /\ Untrusted(w)
    /\ proc' = [proc EXCEPT ![w] = "none"]
    /\ given' = given \cup {w}
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, trust, mode, age, compared, jump, doubt,
                   innocent, ends, left>>

Release(w) ==
    /\ mode[w] = "lives" /\ up /\ w \in given /\ wire[w] = Idle
    /\ given' = given \ {w}
    /\ IF Own(w) THEN place' = "waiting" /\ holder' = "none" ELSE UNCHANGED <<place, holder>>
    /\ UNCHANGED <<up, calm, lease, elapsed, renewed, wire, proc, trust, mode, age, compared, jump, doubt, innocent, ends,
                   left>>

Finish(w) ==
    /\ mode[w] = "lives" /\ proc[w] = "runs" /\ ~Untrusted(w)
    /\ proc' = [proc EXCEPT ![w] = "done"]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, trust, given, mode, age, compared, jump, doubt,
                   innocent, ends, left>>

End(w) ==  \* It is fenced: only the holder of the row ends the attempt.
    /\ mode[w] = "lives" /\ up /\ proc[w] = "done"
    /\ proc' = [proc EXCEPT ![w] = "none"]
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ IF Own(w) THEN place' = "ended" /\ holder' = "none" /\ ends' = ends + 1 ELSE UNCHANGED <<place, holder, ends>>
    /\ UNCHANGED <<up, calm, lease, elapsed, renewed, trust, given, mode, age, compared, jump, doubt, innocent, left>>

Die(w) ==
    /\ mode[w] # "gone" /\ Can("deaths") /\ Use("deaths")
    /\ mode' = [mode EXCEPT ![w] = "gone"]
    /\ proc' = [proc EXCEPT ![w] = "none"]
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ given' = given \ {w}
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, trust, age, compared, jump, doubt, innocent, ends>>

Freeze(w) ==
    /\ mode[w] = "lives" /\ Can("freezes") /\ Use("freezes")
    /\ mode' = [mode EXCEPT ![w] = "frozen"]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, proc, trust, given, age, compared, jump, doubt,
                   innocent, ends>>

Thaw(w) ==
    /\ mode[w] = "frozen"
    /\ mode' = [mode EXCEPT ![w] = "lives"]
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, proc, trust, given, age, compared, jump, doubt,
                   innocent, ends, left>>

-----------------------------------------------------------------------------
\* The server and the reaper.

GoAway ==
    /\ up /\ Can("outages") /\ Use("outages")
    /\ up' = FALSE
    /\ wire' = [w \in Workers |-> Idle]
    /\ UNCHANGED <<calm, place, holder, lease, elapsed, renewed, proc, trust, given, mode, age, compared, jump, doubt,
                   innocent, ends>>

ComeBack ==  \* The server has started again, or the network is there again.
    /\ ~up
    /\ up' = TRUE /\ calm' = 0 /\ age' = 0 /\ compared' = FALSE
    /\ renewed' \in {FALSE, renewed}
    /\ UNCHANGED <<place, holder, lease, elapsed, wire, proc, trust, given, mode, jump, doubt, innocent, ends, left>>

NewReaper ==  \* It begins just after a start of the server, and did not see that.
    /\ up /\ ~renewed /\ age < Reconnect
    /\ age' = Reconnect /\ compared' = FALSE
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, proc, trust, given, mode, jump, doubt, innocent,
                   ends, left>>

Jump ==  \* Forward, by more than a lease.
    /\ up /\ Can("jumps") /\ Use("jumps")
    /\ lease' = 0 /\ jump' = TRUE
    /\ UNCHANGED <<up, calm, place, holder, elapsed, renewed, wire, proc, trust, given, mode, age, compared, doubt, innocent,
                   ends>>

Compare ==
    /\ up /\ ~compared
    /\ compared' = TRUE
    /\ jump' = FALSE
    /\ doubt' = IF jump /\ Rule("doubt a clock that has jumped") THEN Reconnect ELSE doubt
    /\ UNCHANGED <<up, calm, place, holder, lease, elapsed, renewed, wire, proc, trust, given, mode, age, innocent, ends,
                   left>>

Expired == IF jump /\ Rule("reckon with the time that was compared") THEN elapsed = 0 ELSE lease = 0

Expire ==
    /\ up /\ compared /\ place = "running" /\ Expired /\ doubt = 0
    /\ Rule("time to renew after an outage") => age = Reconnect
    /\ Rule("a young server ends no old lease") => renewed \/ calm = Reconnect
    /\ place' = "waiting" /\ holder' = "none"
    /\ innocent' = (innocent \/ (mode[holder] = "lives" /\ ~Slow))
    /\ UNCHANGED <<up, calm, lease, elapsed, renewed, wire, proc, trust, given, mode, age, compared, jump, doubt, ends, left>>

-----------------------------------------------------------------------------
Prompt == \A w \in Workers : mode[w] = "lives" =>
    /\ ~Untrusted(w)
    /\ Slow \/ (wire[w] = Idle /\ (up /\ calm > 0 => w \notin given /\ ~Unknown(w) /\ (proc[w] = "runs" => trust[w] = Trusted) /\ proc[w] # "done"))

Tick ==
    /\ Prompt
    /\ up => compared
    /\ lease' = Less(lease) /\ elapsed' = Less(elapsed) /\ doubt' = Less(doubt)
    /\ trust' = [w \in Workers |-> Less(trust[w])]
    /\ wire' = [w \in Workers |-> IF wire[w] = Idle THEN Idle ELSE [wire[w] EXCEPT !.old = Cap(@ + 1, Trusted)]]
    /\ calm' = IF up THEN Cap(calm + 1, Reconnect) ELSE calm
    /\ age' = IF up THEN Cap(age + 1, Reconnect) ELSE age
    /\ compared' = FALSE
    /\ UNCHANGED <<up, place, holder, renewed, proc, given, mode, jump, innocent, ends, left>>

Next ==
    \/ \E w \in Workers : Send(w) \/ Serve(w) \/ Answer(w) \/ Recover(w) \/ GiveUp(w) \/ Release(w) \/ Finish(w)
                          \/ End(w) \/ Die(w) \/ Freeze(w) \/ Thaw(w)
    \/ GoAway \/ ComeBack \/ NewReaper \/ Jump \/ Compare \/ Expire \/ Tick

Fairness ==
    /\ \A w \in Workers :
        /\ WF_vars(Send(w)) /\ WF_vars(Serve(w)) /\ WF_vars(Answer(w)) /\ WF_vars(Recover(w)) /\ WF_vars(GiveUp(w)) /\ WF_vars(Release(w))
        /\ WF_vars(Finish(w)) /\ WF_vars(End(w)) /\ WF_vars(Thaw(w))
    /\ WF_vars(ComeBack) /\ WF_vars(Compare) /\ SF_vars(Expire) /\ SF_vars(Tick)

Spec == Init /\ [][Next]_vars /\ Fairness

OneEnd == ends <= 1
NoOverlap == left.freezes = Freezes => \A v, w \in Workers : proc[v] = "runs" /\ proc[w] = "runs" => v = w
NoLossOfTheLiving == left.freezes = Freezes => ~innocent
TheJobEnds == (\E w \in Workers : mode[w] # "gone") ~> (ends = 1)
=============================================================================
