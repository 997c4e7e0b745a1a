-------------------------------- MODULE Blame -------------------------------
\* Whom a dead worker is charged to. Some jobs kill their worker each time that they run. Strangers kill workers too,
\* deploys stop them, and some are declared dead while they stand still. The verdict decides by what the database knows.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Workers, Jobs,
    Killers,    \* the jobs that kill their worker
    MaxLosses,
    Shared,     \* whether the jobs share their processes: then suspects may run together
    Strangers,  \* how many workers are killed by others
    Deploys,    \* how many workers are told to stop, and killed before they have stopped
    Freezes,    \* how many workers are declared dead although they live
    Off

VARIABLES
    state,    \* of each job: waiting, suspect, running, ended, quarantined
    on,       \* the worker that runs it
    tried,    \* whether it was claimed before
    begun,    \* whether its row in `running` says that its code may have begun
    runs,     \* whether its code has begun
    alone,    \* whether its row says that nothing runs beside it
    losses,   \* its counter
    lonely,   \* how many of these losses had nothing beside it
    others,   \* how many workers died without it since the first of these losses began
    deaths,   \* how many workers have really died under its code, and were not to stop
    worker,   \* of each worker: up, killed, frozen
    asked,    \* it was asked to stop
    told,     \* the database knows that
    owed,     \* the losses that a frozen worker will take back: the job, and whether it was alone
    left      \* the faults that are left
vars == <<state, on, tried, begun, runs, alone, losses, lonely, others, deaths, worker, asked, told, owed, left>>

Rule(name) == name \notin Off
Can(fault) == left[fault] > 0
Use(fault) == left' = [left EXCEPT ![fault] = @ - 1]
None == "none"
JobsOf(w) == {j \in Jobs : state[j] = "running" /\ on[j] = w}
All(value) == [j \in Jobs |-> value]

Init ==
    /\ state = All("waiting") /\ on = All(None) /\ tried = All(FALSE)
    /\ begun = All(FALSE) /\ runs = All(FALSE) /\ alone = All(FALSE)
    /\ losses = All(0) /\ lonely = All(0) /\ others = All(0) /\ deaths = All(0)
    /\ worker = [w \in Workers |-> "up"]
    /\ asked = {} /\ told = {}
    /\ owed = [w \in Workers |-> {}]
    /\ left = [strangers |-> Strangers, deploys |-> Deploys, freezes |-> Freezes]

-----------------------------------------------------------------------------
\* Jobs begin and end.

Claim(w, j) ==
    /\ state[j] = "waiting" /\ worker[w] = "up" /\ w \notin asked
    /\ \A k \in JobsOf(w) : ~alone[k]
    /\ state' = [state EXCEPT ![j] = "running"]
    /\ on' = [on EXCEPT ![j] = w]
    /\ tried' = [tried EXCEPT ![j] = TRUE]
    /\ begun' = [begun EXCEPT ![j] = tried[j]]  \* What was claimed before may kill by its mere arrival.
    /\ runs' = [runs EXCEPT ![j] = tried[j]]
    /\ others' = IF losses[j] = 0 THEN [others EXCEPT ![j] = 0] ELSE others
    /\ UNCHANGED <<alone, losses, lonely, deaths, worker, asked, told, owed, left>>

Excused(j) == IF ~Shared THEN 0 ELSE IF others[j] < 2 * MaxLosses THEN others[j] ELSE 2 * MaxLosses

MayHaveCompany(j) ==
    Shared /\ (Rule("suspects are alone at last") => losses[j] - Excused(j) < 2 * MaxLosses - 2)

ClaimSuspect(w, group) ==  \* One, or some that have lost as many workers. `first` decides.
    /\ \A j \in group : state[j] = "suspect" /\ \A k \in group : losses[j] = losses[k]
    /\ Cardinality(group) > 1 => \E first \in group : MayHaveCompany(first)
    /\ worker[w] = "up" /\ w \notin asked
    /\ Rule("suspects run alone") => JobsOf(w) = {}
    /\ state' = [j \in Jobs |-> IF j \in group THEN "running" ELSE state[j]]
    /\ on' = [j \in Jobs |-> IF j \in group THEN w ELSE on[j]]
    /\ begun' = [j \in Jobs |-> j \in group \/ begun[j]]
    /\ runs' = [j \in Jobs |-> j \in group \/ runs[j]]
    /\ alone' = [j \in Jobs |-> IF j \in group THEN Rule("suspects run alone") /\ group = {j} ELSE alone[j]]
    /\ UNCHANGED <<tried, losses, lonely, others, deaths, worker, asked, told, owed, left>>

EndTimeAlone(j) ==
    /\ state[j] = "running" /\ alone[j]
    /\ alone' = [alone EXCEPT ![j] = FALSE]
    /\ UNCHANGED <<state, on, tried, begun, runs, losses, lonely, others, deaths, worker, asked, told, owed, left>>

Begin(j) ==  \* mark_begun, and then the code
    /\ state[j] = "running" /\ ~runs[j] /\ worker[on[j]] = "up"
    /\ begun' = [begun EXCEPT ![j] = TRUE]
    /\ runs' = [runs EXCEPT ![j] = TRUE]
    /\ UNCHANGED <<state, on, tried, alone, losses, lonely, others, deaths, worker, asked, told, owed, left>>

Finish(j) ==
    /\ state[j] = "running" /\ runs[j] /\ worker[on[j]] = "up" /\ j \notin Killers
    /\ state' = [state EXCEPT ![j] = "ended"]
    /\ alone' = [alone EXCEPT ![j] = FALSE]
    /\ UNCHANGED <<on, tried, begun, runs, losses, lonely, others, deaths, worker, asked, told, owed, left>>

-----------------------------------------------------------------------------
\* Workers die.

Killed(w) ==
    /\ worker[w] = "up"
    /\ worker' = [worker EXCEPT ![w] = "killed"]
    /\ deaths' = [j \in Jobs |-> deaths[j] + IF j \in JobsOf(w) /\ runs[j] /\ w \notin asked THEN 1 ELSE 0]
    /\ UNCHANGED <<state, on, tried, begun, runs, alone, losses, lonely, others, asked, told, owed>>

KillOwn(j) == state[j] = "running" /\ runs[j] /\ j \in Killers /\ on[j] \notin asked /\ Killed(on[j]) /\ UNCHANGED left

KillStranger(w) == w \notin asked /\ Can("strangers") /\ Use("strangers") /\ Killed(w)

Ask(w) ==  \* SIGTERM. The first thing that the worker does is to tell the database.
    /\ worker[w] = "up" /\ w \notin asked /\ Can("deploys") /\ Use("deploys")
    /\ asked' = asked \cup {w}
    /\ told' = IF Rule("tell of the stop first") THEN told \cup {w} ELSE told
    /\ UNCHANGED <<state, on, tried, begun, runs, alone, losses, lonely, others, deaths, worker, owed>>

KillAsked(w) == w \in asked /\ Killed(w) /\ UNCHANGED left  \* SIGKILL, before the grace is over.

Freeze(w) ==
    /\ worker[w] = "up" /\ w \notin asked /\ JobsOf(w) # {} /\ Can("freezes") /\ Use("freezes")
    /\ worker' = [worker EXCEPT ![w] = "frozen"]
    /\ UNCHANGED <<state, on, tried, begun, runs, alone, losses, lonely, others, deaths, asked, told, owed>>

-----------------------------------------------------------------------------
\* The reaper ends what the worker had (end_lost, settle, charged, verdict).

Charged(j, w) == (begun[j] \/ ~Rule("charge what has begun")) /\ w \notin told

Convicted(had, now, apart, elsewhere, excused) ==
    /\ now >= MaxLosses
    /\ IF Rule("one loss alone proves nothing")
       THEN \/ had = 0
            \/ apart >= 2 /\ apart > 2 * elsewhere
            \/ now >= 2 * MaxLosses /\ elsewhere = 0
            \/ now - excused >= 4 * MaxLosses
       ELSE TRUE

Fate(had, now, apart, elsewhere, excused) ==
    IF Convicted(had, now, apart, elsewhere, excused) THEN "quarantined"
    ELSE IF now > 0 /\ now >= MaxLosses - 1 THEN "suspect"
    ELSE "waiting"

Reap(w) ==
    LET mine == JobsOf(w)
        lost == {j \in mine : Charged(j, w)}
        now == [j \in Jobs |-> losses[j] + IF j \in lost THEN 1 ELSE 0]
        apart == [j \in Jobs |-> lonely[j] + IF j \in lost /\ alone[j] THEN 1 ELSE 0]
    IN /\ worker[w] \in {"killed", "frozen"} /\ owed[w] = {}
       /\ losses' = now /\ lonely' = apart
       /\ state' = [j \in Jobs |->
            IF j \notin mine THEN state[j]
            ELSE IF j \in lost THEN Fate(losses[j], now[j], apart[j], others[j], Excused(j))
            ELSE IF losses[j] > 0 /\ losses[j] >= MaxLosses - 1 THEN "suspect" ELSE "waiting"]
       /\ others' = [j \in Jobs |->
            others[j] + IF j \notin mine /\ w \notin told /\ (losses[j] > 0 \/ state[j] = "running") THEN 1 ELSE 0]
       /\ on' = [j \in Jobs |-> IF j \in mine THEN None ELSE on[j]]
       /\ begun' = [j \in Jobs |-> begun[j] /\ j \notin mine]
       /\ runs' = [j \in Jobs |-> runs[j] /\ j \notin mine]
       /\ alone' = [j \in Jobs |-> alone[j] /\ j \notin mine]
       /\ owed' = IF worker[w] = "killed" THEN owed
                  ELSE [owed EXCEPT ![w] = {[job |-> j, alone |-> alone[j]] : j \in lost}]
       /\ worker' = IF worker[w] = "frozen" /\ lost # {} THEN worker ELSE [worker EXCEPT ![w] = "up"]
       /\ asked' = asked \ {w} /\ told' = told \ {w}  \* Another worker takes its place.
       /\ UNCHANGED <<tried, deaths, left>>

TakeBack(w) ==  \* It wakes, registers under a new id, and takes back what its supposed death has cost.
    LET jobs == {o.job : o \in owed[w]}
        after == [j \in Jobs |-> IF j \in jobs /\ losses[j] > 0 THEN losses[j] - 1 ELSE losses[j]]
    IN /\ worker[w] = "frozen" /\ owed[w] # {}
       /\ losses' = after
       /\ lonely' = [j \in Jobs |-> IF \E o \in owed[w] : o.job = j /\ o.alone THEN lonely[j] - 1 ELSE lonely[j]]
       /\ state' = [j \in Jobs |->
            IF j \notin jobs \/ state[j] \notin {"suspect", "quarantined"} THEN state[j]
            ELSE IF after[j] > 0 /\ after[j] >= MaxLosses - 1 THEN "suspect" ELSE "waiting"]
       /\ \/ worker' = [worker EXCEPT ![w] = "up"] /\ owed' = [owed EXCEPT ![w] = {}]
          \/ ~Rule("take back once") /\ UNCHANGED <<worker, owed>>
       /\ UNCHANGED <<on, tried, begun, runs, alone, others, deaths, asked, told, left>>

-----------------------------------------------------------------------------
Next ==
    \/ \E w \in Workers :
        \/ \E j \in Jobs : Claim(w, j)
        \/ \E group \in SUBSET Jobs \ {{}} : ClaimSuspect(w, group)
        \/ KillStranger(w) \/ Ask(w) \/ KillAsked(w) \/ Freeze(w) \/ Reap(w) \/ TakeBack(w)
    \/ \E j \in Jobs : EndTimeAlone(j) \/ Begin(j) \/ Finish(j) \/ KillOwn(j)

Fairness ==
    /\ \A j \in Jobs :
        /\ SF_vars(\E w \in Workers : Claim(w, j))
        /\ SF_vars(\E w \in Workers, group \in SUBSET Jobs \ {{}} : j \in group /\ ClaimSuspect(w, group))
        /\ WF_vars(Begin(j)) /\ SF_vars(Finish(j)) /\ WF_vars(KillOwn(j))
    /\ \A w \in Workers : WF_vars(Reap(w)) /\ WF_vars(TakeBack(w)) /\ WF_vars(KillAsked(w))

Spec == Init /\ [][Next]_vars /\ Fairness

Debts(j) == Cardinality({w \in Workers : \E o \in owed[w] : o.job = j})
Dying(j) == IF state[j] = "running" /\ worker[on[j]] = "killed" /\ runs[j] /\ on[j] \notin asked THEN 1 ELSE 0
NoLossWithoutADeath == \A j \in Jobs : losses[j] <= deaths[j] + Debts(j)
EveryDeathIsCounted == \A j \in Jobs : losses[j] + Dying(j) >= deaths[j]
NoInnocentIsConvicted == \A j \in Jobs \ Killers : state[j] # "quarantined"
NoSuspectHasCompany == \A j, k \in Jobs : alone[j] /\ state[k] = "running" /\ on[j] = on[k] => j = k
EveryJobEndsOrWaitsForAPerson == \A j \in Jobs : <>[](state[j] \in {"ended", "quarantined"})
=============================================================================
