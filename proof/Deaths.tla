------------------------------- MODULE Deaths -------------------------------
\* How a death is noticed: by a lock that its session held, by an absence after a start of the server, by silence.
\* One reaper watches the workers; it may die, and another one begins. Time passes in ticks. A living worker takes its
\* lock again before the next tick, and within Reconnect ticks after all sessions were cut.
EXTENDS Naturals

CONSTANTS
    Workers,
    Locks,      \* whether locks can prove a death; behind a pooler they can't
    Silence,    \* after so many ticks without a heartbeat a worker is dead; 0: never
    Crashes,    \* whether the server crashes, again and again
    Storms,     \* whether all sessions are cut at once, again and again
    Spells,     \* how often the database is read-only for a while
    Freezes,    \* whether workers freeze
    Off

VARIABLES
    up, writes,  \* the server is there; it takes writes
    calm,        \* ticks since all sessions were cut
    young,       \* the server has started since then
    spells,      \* how many read-only spells are left
    proc,        \* the process of each worker: new, lives, frozen, gone
    lock,        \* the key of the lock that its session holds, 0 for none
    shown,       \* its row in `liveness`: the key, and whether this server was there when it was written
    row,         \* its row in `workers`: none, active, stopped, dead
    missed,      \* for how many ticks a reaper has missed it, since the server started; Never if none has
    beat,        \* ticks since its last heartbeat
    has,         \* whether it has an attempt in `running`
    seen,        \* the reaper's memory: for how many ticks it has found which lock missing, on this connection
    age,         \* ticks since the reaper has reconnected
    lived,       \* for how many ticks this reaper has lived
    checked,     \* whether it has checked in this tick
    mine         \* the workers that this reaper has declared dead
vars == <<up, writes, calm, young, spells, proc, lock, shown, row, missed, beat, has, seen, age, lived, checked, mine>>
server == <<up, writes, calm, young, spells>>
worker == <<proc, lock, shown, row, missed, beat, has>>
reaper == <<seen, age, lived, checked, mine>>

Rule(name) == name \notin Off
Reconnect == 2
Patience == 3
Never == 9
Keys == 1..3
Old == 7
Cap(n, most) == IF n < most THEN n ELSE most
NotSeen == [key |-> 0, for |-> 0]

Init ==
    /\ up = TRUE /\ writes = TRUE /\ calm = Reconnect /\ young = FALSE /\ spells = Spells
    /\ proc = [w \in Workers |-> "new"]
    /\ lock = [w \in Workers |-> 0]
    /\ shown = [w \in Workers |-> 0]
    /\ row = [w \in Workers |-> "none"]
    /\ missed = [w \in Workers |-> Never]
    /\ beat = [w \in Workers |-> 0]
    /\ has = [w \in Workers |-> FALSE]
    /\ seen = [w \in Workers |-> NotSeen]
    /\ age = Reconnect
    /\ lived = 0
    /\ checked = FALSE
    /\ mine = {}

-----------------------------------------------------------------------------
\* Workers.

Register(w) ==
    /\ up /\ writes /\ proc[w] = "new" /\ row[w] = "none"
    /\ proc' = [proc EXCEPT ![w] = "lives"]
    /\ row' = [row EXCEPT ![w] = "active"]
    /\ beat' = [beat EXCEPT ![w] = 0]
    /\ UNCHANGED <<server, lock, shown, missed, has, reaper>>

CanShow(w) == Locks /\ up /\ (writes \/ Rule("show life in a read-only spell")) /\ lock[w] = 0

ShowLife(w) ==  \* Each session has another key.
    /\ proc[w] = "lives" /\ row[w] = "active" /\ CanShow(w)
    /\ lock' = [lock EXCEPT ![w] = CHOOSE key \in Keys : key # shown[w] % Old /\ key # seen[w].key % Old]
    /\ shown' = [shown EXCEPT ![w] = lock'[w]]
    /\ missed' = [missed EXCEPT ![w] = Never]
    /\ UNCHANGED <<server, proc, row, beat, has, reaper>>

Beat(w) ==
    /\ proc[w] = "lives" /\ up /\ writes /\ row[w] = "active" /\ (beat[w] > 0 \/ missed[w] # Never)
    /\ beat' = [beat EXCEPT ![w] = 0]
    /\ missed' = [missed EXCEPT ![w] = Never]
    /\ UNCHANGED <<server, proc, lock, shown, row, has, reaper>>

Claim(w) ==
    /\ proc[w] = "lives" /\ up /\ writes /\ row[w] = "active" /\ ~has[w]
    /\ Locks /\ Rule("show life before the first claim") => shown[w] # 0
    /\ has' = [has EXCEPT ![w] = TRUE]
    /\ UNCHANGED <<server, proc, lock, shown, row, missed, beat, reaper>>

Stop(w) ==  \* It stops on purpose. Another transaction may have locked what it runs: that is left behind.
    /\ proc[w] = "lives" /\ up /\ writes /\ row[w] = "active"
    /\ proc' = [proc EXCEPT ![w] = "gone"]
    /\ row' = [row EXCEPT ![w] = "stopped"]
    /\ lock' = [lock EXCEPT ![w] = 0]
    /\ shown' = [shown EXCEPT ![w] = 0]
    /\ UNCHANGED <<server, missed, beat, has, reaper>>

Leave(w) ==  \* It learns that it was declared dead, and kills its jobs.
    /\ proc[w] = "lives" /\ row[w] = "dead" /\ up
    /\ proc' = [proc EXCEPT ![w] = "gone"]
    /\ lock' = [lock EXCEPT ![w] = 0]
    /\ UNCHANGED <<server, shown, row, missed, beat, has, reaper>>

Die(w) ==
    /\ proc[w] \in {"lives", "frozen"}
    /\ proc' = [proc EXCEPT ![w] = "gone"]
    /\ lock' = [lock EXCEPT ![w] = 0]
    /\ UNCHANGED <<server, shown, row, missed, beat, has, reaper>>

Freeze(w) ==
    /\ Freezes /\ proc[w] = "lives"
    /\ proc' = [proc EXCEPT ![w] = "frozen"]
    /\ UNCHANGED <<server, lock, shown, row, missed, beat, has, reaper>>

Thaw(w) ==
    /\ proc[w] = "frozen"
    /\ proc' = [proc EXCEPT ![w] = "lives"]
    /\ UNCHANGED <<server, lock, shown, row, missed, beat, has, reaper>>

Cut(w) ==  \* An operator ends the session of a living worker.
    /\ proc[w] = "lives" /\ lock[w] # 0 /\ calm = Reconnect
    /\ lock' = [lock EXCEPT ![w] = 0]
    /\ UNCHANGED <<server, proc, shown, row, missed, beat, has, reaper>>

-----------------------------------------------------------------------------
\* The server.

Forget == seen' = [w \in Workers |-> NotSeen] /\ age' = 0 /\ checked' = FALSE  \* The reaper has reconnected.

Storm ==
    /\ Storms /\ up /\ checked /\ calm = Reconnect
    /\ calm' = 0
    /\ lock' = [w \in Workers |-> 0]
    /\ Forget
    /\ UNCHANGED <<up, writes, young, spells, proc, shown, row, missed, beat, has, lived, mine>>

Crash ==  \* At the earliest after three checks.
    /\ Crashes /\ up /\ checked /\ calm = Reconnect
    /\ up' = FALSE
    /\ lock' = [w \in Workers |-> 0]
    /\ missed' = IF Rule("keep how long a worker is missed") THEN missed ELSE [w \in Workers |-> Never]
    /\ UNCHANGED <<writes, calm, young, spells, proc, shown, row, beat, has, reaper>>

Recover ==  \* The server has started again, or the network is there again.
    /\ ~up
    /\ up' = TRUE /\ calm' = 0
    /\ young' \in BOOLEAN
    /\ shown' = [w \in Workers |-> IF young' /\ shown[w] \in Keys THEN shown[w] + Old ELSE shown[w]]
    /\ Forget
    /\ UNCHANGED <<writes, spells, proc, lock, row, missed, beat, has, lived, mine>>

Spell ==
    /\ up /\ (~writes \/ spells > 0)
    /\ writes' = ~writes
    /\ spells' = IF writes THEN spells - 1 ELSE spells
    /\ UNCHANGED <<up, calm, young, worker, reaper>>

-----------------------------------------------------------------------------
\* The reaper.

NewReaper ==  \* It dies after two checks or more, and another one begins, which has seen no reconnection.
    /\ lived = 2 /\ checked /\ (calm = Reconnect \/ young)
    /\ seen' = [w \in Workers |-> NotSeen] /\ age' = Reconnect /\ lived' = 0 /\ checked' = FALSE /\ mine' = {}
    /\ missed' = IF Rule("keep how long a worker is missed") THEN missed ELSE [w \in Workers |-> Never]
    /\ UNCHANGED <<server, proc, lock, shown, row, beat, has>>

Watched(w) == row[w] = "active" /\ shown[w] # 0
Looks == up /\ (writes \/ ~Rule("show life in a read-only spell"))
Here(w) == shown[w] \in Keys
Missing(w) == Looks /\ lock[w] = 0 /\ (Here(w) \/ (~Rule("a restart proves nothing") /\ shown[w] # 0))
NeverLocked(w) == Looks /\ Watched(w) /\ ~Here(w)

Check ==  \* absent, and note_missed
    /\ up /\ ~checked
    /\ checked' = TRUE
    /\ seen' = [w \in Workers |->
        IF ~Missing(w) THEN NotSeen
        ELSE IF seen[w].key = shown[w] \/ (seen[w].key # 0 /\ ~Rule("the same lock")) THEN seen[w]
        ELSE [key |-> shown[w], for |-> 0]]
    /\ missed' = [w \in Workers |-> IF NeverLocked(w) /\ missed[w] = Never THEN 0 ELSE missed[w]]
    /\ age' = IF writes THEN age ELSE 0  \* A statement that is refused replaces the connection.
    /\ UNCHANGED <<server, proc, lock, shown, row, beat, has, lived, mine>>

Proof == IF ~Rule("two checks") THEN 0 ELSE IF age < Reconnect /\ Rule("caution after a reconnect") THEN 2 ELSE 1

ByLock(w) == checked /\ Missing(w) /\ seen[w].key # 0 /\ seen[w].for >= Proof
ByAbsence(w) == checked /\ NeverLocked(w) /\ missed[w] # Never /\ missed[w] >= Patience /\ age = Reconnect
BySilence(w) ==
    /\ Silence > 0 /\ up /\ writes /\ beat[w] >= Silence
    /\ Rule("time to beat after an outage") => age = Reconnect
    /\ Rule("a young server proves no silence") => ~young

Declare(w) ==
    /\ row[w] = "active" /\ (ByLock(w) \/ ByAbsence(w) \/ BySilence(w))
    /\ row' = [row EXCEPT ![w] = "dead"]
    /\ shown' = [shown EXCEPT ![w] = 0]
    /\ mine' = mine \cup {w}
    /\ UNCHANGED <<server, proc, lock, missed, beat, has, seen, age, lived, checked>>

Reap(w) ==
    /\ up /\ writes /\ has[w]
    /\ \/ row[w] = "dead" /\ (Rule("any reaper ends what a dead worker had") \/ w \in mine)
       \/ row[w] = "stopped" /\ Rule("what a stopped worker left is released")
    /\ has' = [has EXCEPT ![w] = FALSE]
    /\ UNCHANGED <<server, proc, lock, shown, row, missed, beat, reaper>>

-----------------------------------------------------------------------------
\* Time passes when all that is done at once is done.

Prompt ==
    /\ up => checked
    /\ \A w \in Workers : proc[w] = "lives" /\ row[w] = "active" =>
        /\ CanShow(w) /\ shown[w] # 0 => calm + 1 < Reconnect
        /\ up /\ writes /\ calm > 0 => beat[w] = 0
    /\ \A w \in Workers : ~(row[w] = "active" /\ (ByLock(w) \/ ByAbsence(w) \/ BySilence(w)))

Tick ==
    /\ Prompt
    /\ calm' = IF up THEN Cap(calm + 1, Reconnect) ELSE calm
    /\ young' = (young /\ calm' < Reconnect)
    /\ age' = IF up THEN Cap(age + 1, Reconnect) ELSE age
    /\ beat' = [w \in Workers |-> IF Silence > 0 THEN Cap(beat[w] + 1, Silence) ELSE 0]
    /\ missed' = [w \in Workers |-> IF missed[w] = Never THEN Never ELSE Cap(missed[w] + 1, Patience)]
    /\ seen' = [w \in Workers |-> [seen[w] EXCEPT !.for = Cap(@ + 1, 2)]]
    /\ lived' = Cap(lived + 1, 2)
    /\ checked' = FALSE
    /\ UNCHANGED <<up, writes, spells, proc, lock, shown, row, has, mine>>

Next ==
    \/ \E w \in Workers : Register(w) \/ ShowLife(w) \/ Beat(w) \/ Claim(w) \/ Stop(w) \/ Leave(w) \/ Die(w)
                          \/ Freeze(w) \/ Thaw(w) \/ Cut(w) \/ Declare(w) \/ Reap(w)
    \/ Storm \/ Crash \/ Recover \/ Spell \/ NewReaper \/ Check \/ Tick

Fairness ==
    /\ WF_vars(Recover) /\ SF_vars(Check) /\ SF_vars(Tick) /\ WF_vars(~writes /\ Spell)
    /\ \A w \in Workers : WF_vars(ShowLife(w)) /\ WF_vars(Beat(w)) /\ SF_vars(Declare(w)) /\ SF_vars(Reap(w))
                          /\ WF_vars(Leave(w))

Spec == Init /\ [][Next]_vars /\ Fairness

NoLivingWorkerIsDeclaredDead == \A w \in Workers : proc[w] = "lives" => row[w] # "dead"
Noticeable(w) == Silence > 0 \/ shown[w] # 0 \/ has[w]
EveryDeathIsNoticed ==
    \A w \in Workers : proc[w] = "gone" /\ row[w] = "active" /\ Noticeable(w) ~> row[w] = "dead"
EveryAttemptIsFreed == \A w \in Workers : proc[w] = "gone" /\ has[w] ~> ~has[w]
=============================================================================
