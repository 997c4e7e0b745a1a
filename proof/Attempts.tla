------------------------------ MODULE Attempts ------------------------------
\* Claims, ends, and the fence between them. A worker sends one statement at a time, which ends attempts and claims a
\* job. Its answer may be lost, the server may run it after the worker has gone on, a living worker may be declared
\* dead, and a standby may take over that lacks the last transactions.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Jobs,
    Alive,      \* how many workers run at a time
    Slots,      \* how many jobs a worker runs at a time
    Breaks,     \* how many connections break
    Deaths,     \* how many workers die
    Mistakes,   \* how many living workers are declared dead, or have a lease that ends
    Failovers,  \* how often a standby takes over
    Off         \* the rules that are switched off, to see that the check finds what follows

VARIABLES
    db,      \* waiting, running, ends, dead, seq, last: what the server has committed
    copy,    \* what the standby has
    ids,     \* the last id of a worker
    alive,   \* the ids of the workers whose process lives
    knows,   \* the attempts that each worker knows: token, job, and whether it runs or is done
    wire,    \* the statement that a worker waits for
    late,    \* statements of broken connections that the server may still run
    unsure,  \* the workers that must read what the database has for them before they claim
    begun,   \* how often the code of a job has begun
    wrong,   \* what was wrong with an end that was accepted: foreign, stale
    left     \* the faults that are left
vars == <<db, copy, ids, alive, knows, wire, late, unsure, begun, wrong, left>>

Rule(name) == name \notin Off
MaxIds == Alive + Deaths + Mistakes
Workers == 1..MaxIds
Nothing == [ends |-> {}, claims |-> FALSE, served |-> FALSE, got |-> {}]
Idle == [ends |-> {}, claims |-> FALSE, served |-> TRUE, got |-> {}]
Can(fault) == left[fault] > 0
Use(fault) == left' = [left EXCEPT ![fault] = @ - 1]

Init ==
    /\ db = [waiting |-> Jobs, running |-> {}, ends |-> [j \in Jobs |-> 0], dead |-> {}, seq |-> 0,
             last |-> [j \in Jobs |-> 0]]
    /\ copy = db
    /\ ids = Alive
    /\ alive = 1..Alive
    /\ knows = [w \in Workers |-> {}]
    /\ wire = [w \in Workers |-> Idle]
    /\ late = {}
    /\ unsure = {}
    /\ begun = [j \in Jobs |-> 0]
    /\ wrong = {}
    /\ left = [breaks |-> Breaks, deaths |-> Deaths, mistakes |-> Mistakes, copies |-> Failovers,
               failovers |-> Failovers]

-----------------------------------------------------------------------------
\* The statement end_and_claim, as one transaction of the server.

Ended(d, w, ends) ==  \* The rows that the worker may end: they are its own. What it sends of others is refused.
    IF Rule("fence") THEN {r \in d.running : r.worker = w /\ \E e \in ends : e.token = r.token}
    ELSE {r \in d.running : \E e \in ends : e.job = r.job}

AfterEnds(d, w, ends) ==
    LET rows == Ended(d, w, ends)
        over == IF Rule("fence") THEN {r.job : r \in rows} ELSE {e.job : e \in ends}
    IN [d EXCEPT !.running = @ \ rows, !.waiting = @ \ over,
                 !.ends = [j \in Jobs |-> d.ends[j] + IF j \in over THEN 1 ELSE 0]]

Wrongs(d, w, ends) ==
    LET rows == Ended(d, w, ends)
        accepted == IF Rule("fence") THEN {e \in ends : \E r \in rows : r.token = e.token} ELSE ends
    IN (IF \E e \in accepted : \E r \in rows : e.token = r.token /\ e.job # r.job THEN {"foreign"} ELSE {})
       \cup (IF \E e \in accepted : e.token # d.last[e.job] THEN {"stale"} ELSE {})

Claimable(d, w, claims) == IF claims /\ w \notin d.dead THEN d.waiting ELSE {}

AfterClaim(d, w, j) ==
    LET row == [token |-> d.seq + 1, job |-> j, worker |-> w]
    IN [d EXCEPT !.waiting = @ \ {j}, !.running = @ \cup {row}, !.seq = @ + 1, !.last[j] = d.seq + 1]

Execute(w, s, Then(_)) ==  \* Then says what becomes of the answer: the rows that were claimed.
    LET d == AfterEnds(db, w, s.ends)
        some == Claimable(d, w, s.claims)
    IN /\ wrong' = wrong \cup Wrongs(db, w, s.ends)
       /\ IF some = {} THEN db' = d /\ Then({})
          ELSE \E j \in some : /\ db' = AfterClaim(d, w, j)
                               /\ Then({r \in db'.running : r.token = db'.seq})

-----------------------------------------------------------------------------
\* A worker.

Done(w) == {[token |-> k.token, job |-> k.job] : k \in {k \in knows[w] : k.at = "done"}}
Unsent(w) == {k \in knows[w] : \A e \in wire[w].ends : e.token # k.token}
Runs(w) == {k \in knows[w] : k.at = "runs"}
Room(w) == Cardinality(Runs(w)) < Slots
Free(w) == w \in alive /\ wire[w] = Idle

Begin(rows) == {[token |-> r.token, job |-> r.job, at |-> "runs"] : r \in rows}
Count(rows) == begun' = [j \in Jobs |-> begun[j] + Cardinality({r \in rows : r.job = j})]

Send(w) ==
    /\ Free(w) /\ w \notin unsure
    /\ Done(w) # {} \/ Room(w)
    /\ wire' = [wire EXCEPT ![w] = [Nothing EXCEPT !.ends = Done(w), !.claims = Room(w)]]
    /\ UNCHANGED <<db, copy, ids, alive, knows, late, unsure, begun, wrong, left>>

Serve(w) ==
    /\ ~wire[w].served
    /\ Execute(w, wire[w], LAMBDA got : wire' = [wire EXCEPT ![w].served = TRUE, ![w].got = got])
    /\ UNCHANGED <<copy, ids, alive, knows, late, unsure, begun, left>>

Answer(w) ==
    /\ w \in alive /\ wire[w].served /\ wire[w] # Idle
    /\ knows' = [knows EXCEPT ![w] = Unsent(w) \cup Begin(wire[w].got)]
    /\ Count(wire[w].got)
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ UNCHANGED <<db, copy, ids, alive, late, unsure, wrong, left>>

Orphan(w) == IF wire[w].served THEN {} ELSE {[worker |-> w, ends |-> wire[w].ends, claims |-> wire[w].claims]}

Break(w) ==  \* The answer is lost. The ends stay in the outbox, until they are known to be written.
    /\ Can("breaks") /\ Use("breaks")
    /\ w \in alive /\ wire[w] # Idle
    /\ late' = late \cup Orphan(w)
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ unsure' = unsure \cup {w}
    /\ knows' = IF Rule("put ends back") THEN knows ELSE [knows EXCEPT ![w] = Unsent(w)]
    /\ UNCHANGED <<db, copy, ids, alive, begun, wrong>>

ServeLate(s) ==
    /\ s \in late
    /\ late' = late \ {s}
    /\ Execute(s.worker, s, LAMBDA got : TRUE)
    /\ UNCHANGED <<copy, ids, alive, knows, wire, unsure, begun, left>>

DropLate(s) ==
    /\ s \in late
    /\ late' = late \ {s}
    /\ UNCHANGED <<db, copy, ids, alive, knows, wire, unsure, begun, wrong, left>>

Reconcile(w) ==
    LET held == {r \in db.running : r.worker = w}
        tokens == {r.token : r \in held}
        known == {k.token : k \in knows[w]}
        unknown == IF Rule("recover claims") THEN {r \in held : r.token \notin known} ELSE {}
    IN /\ Free(w)
       /\ w \in unsure \/ (Rule("look again") /\ (unknown # {} \/ ~(known \subseteq tokens)))
       /\ knows' = [knows EXCEPT ![w] = {k \in @ : k.token \in tokens} \cup Begin(unknown)]
       /\ Count(unknown)
       /\ unsure' = unsure \ {w}
       /\ UNCHANGED <<db, copy, ids, alive, wire, late, wrong, left>>

Finish(w, k) ==
    /\ w \in alive /\ k \in Runs(w)
    /\ knows' = [knows EXCEPT ![w] = (@ \ {k}) \cup {[k EXCEPT !.at = "done"]}]
    /\ UNCHANGED <<db, copy, ids, alive, wire, late, unsure, begun, wrong, left>>

Complete(w, k) ==  \* The job ends its attempt in its own transaction, and its process reports that.
    /\ w \in alive /\ k \in Runs(w)
    /\ LET own == {[token |-> k.token, job |-> k.job]}
       IN db' = AfterEnds(db, w, own) /\ wrong' = wrong \cup Wrongs(db, w, own)
    /\ knows' = [knows EXCEPT ![w] = @ \ {k}]
    /\ UNCHANGED <<copy, ids, alive, wire, late, unsure, begun, left>>

-----------------------------------------------------------------------------
\* Death, real and supposed.

Gone(w) ==
    /\ alive' = alive \ {w}
    /\ knows' = [knows EXCEPT ![w] = {}]
    /\ late' = late \cup Orphan(w)
    /\ wire' = [wire EXCEPT ![w] = Idle]
    /\ unsure' = unsure \ {w}

Die(w) ==
    /\ w \in alive /\ Can("deaths") /\ Use("deaths")
    /\ Gone(w)
    /\ UNCHANGED <<db, copy, ids, begun, wrong>>

Learn(w) ==  \* A worker that was declared dead kills its jobs, and comes back under a new id.
    /\ w \in alive \cap db.dead
    /\ Gone(w)
    /\ UNCHANGED <<db, copy, ids, begun, wrong, left>>

Register ==
    /\ Cardinality(alive) < Alive /\ ids < MaxIds
    /\ ids' = ids + 1
    /\ alive' = alive \cup {ids + 1}
    /\ UNCHANGED <<db, copy, knows, wire, late, unsure, begun, wrong, left>>

Declare(w) ==
    /\ w \in 1..ids /\ w \notin db.dead
    /\ IF w \in alive THEN Can("mistakes") /\ Use("mistakes") ELSE UNCHANGED left
    /\ db' = [db EXCEPT !.dead = @ \cup {w}]
    /\ UNCHANGED <<copy, ids, alive, knows, wire, late, unsure, begun, wrong>>

Lose(r) == db' = [db EXCEPT !.running = @ \ {r}, !.waiting = @ \cup {r.job}]

Reap(r) ==
    /\ r \in db.running /\ r.worker \in db.dead
    /\ Lose(r)
    /\ UNCHANGED <<copy, ids, alive, knows, wire, late, unsure, begun, wrong, left>>

Expire(r) ==
    /\ r \in db.running /\ r.worker \notin db.dead /\ Can("mistakes") /\ Use("mistakes")
    /\ Lose(r)
    /\ UNCHANGED <<copy, ids, alive, knows, wire, late, unsure, begun, wrong>>

Replicate ==  \* From here on the standby receives nothing.
    /\ Can("copies") /\ Use("copies")
    /\ copy' = db
    /\ UNCHANGED <<db, ids, alive, knows, wire, late, unsure, begun, wrong>>

Failover ==
    /\ left.copies < left.failovers /\ Use("failovers")
    /\ db' = copy
    /\ late' = {}
    /\ unsure' = IF Rule("read back on a new connection") THEN alive
                 ELSE unsure \cup {w \in alive : wire[w] # Idle}
    /\ wire' = [w \in Workers |-> Idle]
    /\ UNCHANGED <<copy, ids, alive, knows, begun, wrong>>

-----------------------------------------------------------------------------
Next ==
    \/ \E w \in Workers :
        \/ Send(w) \/ Serve(w) \/ Answer(w) \/ Break(w) \/ Reconcile(w) \/ Die(w) \/ Learn(w) \/ Declare(w)
        \/ \E k \in knows[w] : Finish(w, k) \/ Complete(w, k)
    \/ \E s \in late : ServeLate(s) \/ DropLate(s)
    \/ \E r \in db.running : Reap(r) \/ Expire(r)
    \/ Register \/ Replicate \/ Failover

Fairness ==
    /\ \A w \in Workers :
        /\ WF_vars(Send(w)) /\ WF_vars(Serve(w)) /\ WF_vars(Answer(w)) /\ SF_vars(Reconcile(w)) /\ WF_vars(Learn(w))
        /\ WF_vars(w \notin alive /\ Declare(w))
        /\ WF_vars(\E k \in knows[w] : Finish(w, k))
        /\ WF_vars(\E r \in db.running : r.worker = w /\ Reap(r))
    /\ WF_vars(Register)

Spec == Init /\ [][Next]_vars /\ Fairness

OnePlace == \A j \in Jobs :
    Cardinality({r \in db.running : r.job = j}) + (IF j \in db.waiting THEN 1 ELSE 0)
        + (IF db.ends[j] > 0 THEN 1 ELSE 0) = 1
OneEnd == \A j \in Jobs : db.ends[j] <= 1
OneRow == \A r, q \in db.running : r.token = q.token => r = q
NoForeignEnd == "foreign" \notin wrong
NoStaleEnd == "stale" \notin wrong
RunsOnceWithoutCause == left.deaths = Deaths /\ left.mistakes = Mistakes => \A j \in Jobs : begun[j] <= 1
EveryJobEnds == \A j \in Jobs : <>(db.ends[j] > 0)
=============================================================================
