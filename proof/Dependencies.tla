---------------------------- MODULE Dependencies ----------------------------
\* A job that waits for others. It is enqueued in a transaction that may be open for long, while the jobs that it needs
\* end in other transactions, each of which sees what was committed before. What one transaction can't see, another one
\* must, or a note of it is left, which a worker checks later.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Needs,      \* the jobs that are needed
    OnFailure,  \* what a failure does: block, cancel, proceed
    Fails,      \* how many of them may fail
    Reruns,     \* how often an operator lets a succeeded one begin again
    OldSnapshots,  \* whether ends are written at repeatable read
    Many,       \* whether so many jobs wait that their release is left for later
    Off

VARIABLES
    job,       \* the committed state of each needed job: running, succeeded, failed
    ending,    \* the transaction that ends it: none, begun, deleted, followed
    outcome,   \* what it writes
    old,       \* whether it has an old snapshot
    sees,      \* whether it sees the dependency
    read,      \* how many unmet ones it has read
    enqueue,   \* the transaction that enqueues: none, open, done
    found,     \* the jobs that were over when it looked
    met,       \* the dependencies that are met
    unmet,     \* the counter in `held`
    state,     \* of the job that waits: none, blocked, pending, cancelled
    holder,    \* which transaction has locked its row in `held`
    notes,     \* end_checks: the jobs whose end is to be checked, and why
    releases,  \* how often it was released
    early,     \* whether it was released while a job that it needs was not over
    left
vars == <<job, ending, outcome, old, sees, read, enqueue, found, met, unmet, state, holder, notes, releases, early, left>>

Rule(name) == name \notin Off
None == "none"
Good(n) == IF OnFailure = "proceed" THEN job[n] # "running" ELSE job[n] = "succeeded"
Counts(result) == result = "succeeded" \/ OnFailure = "proceed"

Init ==
    /\ job = [n \in Needs |-> "running"]
    /\ ending = [n \in Needs |-> None]
    /\ outcome = [n \in Needs |-> None]
    /\ old = [n \in Needs |-> FALSE]
    /\ sees = [n \in Needs |-> FALSE]
    /\ read = [n \in Needs |-> 0]
    /\ enqueue = None /\ found = {} /\ met = {} /\ unmet = 0 /\ state = None /\ holder = None
    /\ notes = {} /\ releases = 0 /\ early = FALSE
    /\ left = [fails |-> Fails, reruns |-> Reruns]

-----------------------------------------------------------------------------
\* What a transaction does to the job that waits, when the ends of some jobs are applied to it. `all` are the jobs that
\* have this state when it commits.

Apply(ends, results, from) ==
    LET new == {n \in ends : Counts(results[n])} \ (IF Rule("an end is counted once") THEN met ELSE {})
        bad == {n \in ends : results[n] = "failed"} \ met
        rest == IF from > Cardinality(new) THEN from - Cardinality(new) ELSE 0
    IN IF state # "blocked" THEN UNCHANGED <<met, unmet, state, releases, early>>
       ELSE IF bad # {} /\ OnFailure = "cancel"
       THEN state' = "cancelled" /\ UNCHANGED <<met, unmet, releases, early>>
       ELSE /\ met' = met \cup new
            /\ unmet' = rest
            /\ IF new # {} /\ rest = 0
               THEN /\ state' = "pending" /\ releases' = releases + 1
                    /\ early' = (early \/ \E n \in Needs \ ends : ~Good(n))
               ELSE UNCHANGED <<state, releases, early>>

-----------------------------------------------------------------------------
\* depend: the transaction that enqueues it

Open ==  \* It sees the ends that are committed now, and locks no row of another job.
    /\ enqueue = None
    /\ enqueue' = "open"
    /\ found' = {n \in Needs : job[n] # "running"}
    /\ UNCHANGED <<job, ending, outcome, old, sees, read, met, unmet, state, holder, notes, releases, early, left>>

Commit ==
    /\ enqueue = "open"
    /\ enqueue' = "done"
    /\ LET over == {n \in found : Counts(job[n])}
           fallen == OnFailure = "cancel" /\ \E n \in found : job[n] = "failed"
       IN /\ met' = over
          /\ unmet' = Cardinality(Needs \ over)
          /\ state' = IF fallen THEN "cancelled" ELSE IF over = Needs THEN "pending" ELSE "blocked"
          /\ releases' = IF ~fallen /\ over = Needs THEN 1 ELSE 0
    /\ notes' = notes \cup IF Rule("an enqueue leaves a note") THEN {[job |-> n, of |-> "enqueue"] : n \in Needs} ELSE {}
    /\ UNCHANGED <<job, ending, outcome, old, sees, read, found, holder, early, left>>

-----------------------------------------------------------------------------
\* The transaction that ends a needed job: end_attempts or cancel, with follow_up

Begin(n) ==  \* A transaction at repeatable read sees what is committed now, whatever comes later.
    /\ job[n] = "running" /\ ending[n] = None
    /\ ending' = [ending EXCEPT ![n] = "begun"]
    /\ \E o \in {"succeeded", "failed"} :
        /\ o = "failed" => left.fails > 0
        /\ outcome' = [outcome EXCEPT ![n] = o]
        /\ left' = IF o = "failed" THEN [left EXCEPT !.fails = @ - 1] ELSE left
    /\ \E late \in {FALSE} \cup {OldSnapshots} : old' = [old EXCEPT ![n] = late]
    /\ sees' = [sees EXCEPT ![n] = (enqueue = "done")]
    /\ UNCHANGED <<job, read, enqueue, found, met, unmet, state, holder, notes, releases, early>>

Delete(n) ==  \* From here on its row is locked.
    /\ ending[n] = "begun"
    /\ ending' = [ending EXCEPT ![n] = "deleted"]
    /\ UNCHANGED <<job, outcome, old, sees, read, enqueue, found, met, unmet, state, holder, notes, releases, early, left>>

Follow(n) ==  \* It looks for jobs that wait for it, and locks them.
    LET see == IF old[n] THEN sees[n] ELSE enqueue = "done"
        locks == see /\ ~Many
    IN /\ ending[n] = "deleted"
       /\ locks /\ Rule("a second end waits for the first") => holder = None
       /\ ending' = [ending EXCEPT ![n] = "followed"]
       /\ sees' = [sees EXCEPT ![n] = see]
       /\ holder' = IF locks THEN n ELSE holder
       /\ read' = [read EXCEPT ![n] = unmet]
       /\ UNCHANGED <<job, outcome, old, enqueue, found, met, unmet, state, notes, releases, early, left>>

End(n) ==
    /\ ending[n] = "followed"
    /\ job' = [job EXCEPT ![n] = outcome[n]]
    /\ ending' = [ending EXCEPT ![n] = None]
    /\ holder' = IF holder = n THEN None ELSE holder
    /\ IF sees[n] /\ ~Many THEN Apply({n}, outcome, IF holder = n THEN unmet ELSE read[n])
       ELSE UNCHANGED <<met, unmet, state, releases, early>>
    /\ notes' = notes \cup
        IF (sees[n] /\ Many) \/ (old[n] /\ Rule("an old snapshot leaves its end for later"))
        THEN {[job |-> n, of |-> "end"]} ELSE {}
    /\ UNCHANGED <<outcome, old, sees, read, enqueue, found, left>>

-----------------------------------------------------------------------------
\* leftovers: check_late_ends and follow_late_ends

Moving(n) == ending[n] \in {"deleted", "followed"}

Check(note) ==
    LET n == note.job
    IN /\ note \in notes /\ enqueue = "done"
       /\ Rule("a note stays while the job moves") => ~Moving(n)
       /\ job[n] # "running" => holder = None
       /\ IF job[n] # "running" THEN Apply({n}, job, unmet) ELSE UNCHANGED <<met, unmet, state, releases, early>>
       /\ notes' = notes \ {note}
       /\ UNCHANGED <<job, ending, outcome, old, sees, read, enqueue, found, holder, left>>

Drop(note) ==  \* A note about an end that concerns no job.
    /\ note \in notes /\ enqueue # "done" /\ ~Moving(note.job)
    /\ notes' = notes \ {note}
    /\ UNCHANGED <<job, ending, outcome, old, sees, read, enqueue, found, met, unmet, state, holder, releases, early, left>>

Rerun(n) ==  \* An operator lets a succeeded job begin again. Those that wait wait for its new result.
    /\ job[n] = "succeeded" /\ holder = None /\ left.reruns > 0
    /\ Rule("a rerun waits for open enqueues") => enqueue # "open"
    /\ left' = [left EXCEPT !.reruns = @ - 1]
    /\ job' = [job EXCEPT ![n] = "running"]
    /\ IF n \in met /\ state = "blocked" /\ Rule("wait for the new result")
       THEN met' = met \ {n} /\ unmet' = unmet + 1
       ELSE UNCHANGED <<met, unmet>>
    /\ UNCHANGED <<ending, outcome, old, sees, read, enqueue, found, state, holder, notes, releases, early>>

Next ==
    \/ Open \/ Commit
    \/ \E n \in Needs : Begin(n) \/ Delete(n) \/ Follow(n) \/ End(n) \/ Rerun(n)
    \/ \E note \in notes : Check(note) \/ Drop(note)

Fairness ==
    /\ WF_vars(Open) /\ WF_vars(Commit)
    /\ \A n \in Needs :
        /\ WF_vars(Begin(n)) /\ WF_vars(Delete(n)) /\ SF_vars(Follow(n)) /\ WF_vars(End(n))
        /\ \A of \in {"enqueue", "end"} : SF_vars(Check([job |-> n, of |-> of]))

Spec == Init /\ [][Next]_vars /\ Fairness

Over == \A n \in Needs : Good(n)
ReleasedOnce == releases <= 1
ReleasedAfterTheEnds == ~early
UnmetIsRight == state = "blocked" /\ holder = None => unmet = Cardinality(Needs \ met)
EveryReleaseComes == []<>(~Over \/ state \in {"pending", "cancelled"})
EveryFailureComes == []<>(OnFailure # "cancel" \/ state = "cancelled" \/ \A n \in Needs : job[n] # "failed")
=============================================================================
