-------------------------------- MODULE Waits -------------------------------
\* A job that waits for signals. Each receive is a step: it is kept in the database, and replayed by the next attempt.
\* The process of a job that waits is parked, and goes on if its worker claims the job again. Attempts are lost,
\* processes die, answers are lost, and signals are sent meanwhile.
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Workers,
    Receives,  \* how many signals the job receives, one after the other, before it ends
    Sends,     \* how many are sent
    Breaks,    \* how many answers are lost
    Losses,    \* how many attempts are lost while their worker lives
    Kills,     \* how many processes die
    Timeouts,  \* how often the worker decides to stop the job, because its time is over
    Off

VARIABLES
    place,    \* of the job: waiting, running, suspended, ended
    row,      \* its row in `running`: token and worker
    seq,      \* the last token
    signals,  \* what was sent and not received
    steps,    \* what was received, in order
    parked,   \* the worker that has parked its process, as the database knows it
    over,     \* whether the wait is over
    locked,   \* which transaction has locked the row of the job: none, send, suspend
    sender,   \* the transaction that sends: its stage, and whether it sees that the job waits for it
    sent,     \* how many signals were sent
    looked,   \* the suspend under way: the token, the signal that it has found, whether its process has died
    procs,    \* processes: worker, token, what the code has received, whether it runs or is parked, what was decided
    wrong,    \* what has gone wrong
    left      \* the faults that are left
vars == <<place, row, seq, signals, steps, parked, over, locked, sender, sent, looked, procs, wrong, left>>

Rule(name) == name \notin Off
Can(fault) == left[fault] > 0
Use(fault) == left' = [left EXCEPT ![fault] = @ - 1]
NoRow == [token |-> 0, worker |-> "none"]
NoOne == [token |-> 0, found |-> 0, kept |-> FALSE, orphan |-> FALSE]
Closed == [stage |-> "none", sees |-> FALSE]
Own(p) == place = "running" /\ row = [token |-> p.token, worker |-> p.worker]
Least(set) == IF set = {} THEN 0 ELSE CHOOSE n \in set : \A m \in set : n <= m

Init ==
    /\ place = "waiting" /\ row = NoRow /\ seq = 0
    /\ signals = {} /\ steps = <<>> /\ parked = "none" /\ over = FALSE
    /\ locked = "none" /\ sender = Closed /\ sent = 0 /\ looked = NoOne
    /\ procs = {} /\ wrong = {}
    /\ left = [breaks |-> Breaks, losses |-> Losses, kills |-> Kills, timeouts |-> Timeouts]

-----------------------------------------------------------------------------
\* send

Open ==
    /\ sender = Closed /\ sent < Sends /\ place # "ended"
    /\ sender' = [stage |-> "open", sees |-> (place = "suspended" /\ ~over)]
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, locked, sent, looked, procs, wrong, left>>

LockForSend ==
    /\ sender.stage = "open"
    /\ Rule("lock the job first") => locked = "none"
    /\ locked' = IF Rule("lock the job first") THEN "send" ELSE locked
    /\ sender' = [stage |-> "locked",
                  sees |-> IF Rule("send at read committed") THEN place = "suspended" /\ ~over ELSE sender.sees]
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, sent, looked, procs, wrong, left>>

Send ==
    /\ sender.stage = "locked"
    /\ IF place = "ended" THEN UNCHANGED <<signals, steps, over, place, sent>>  \* It is refused.
       ELSE /\ sent' = sent + 1
            /\ IF sender.sees /\ place = "suspended" /\ ~over
               THEN /\ steps' = Append(steps, sent + 1)
                    /\ over' = (parked # "none")
                    /\ place' = IF parked = "none" THEN "waiting" ELSE place
                    /\ UNCHANGED signals
               ELSE /\ signals' = signals \cup {sent + 1}
                    /\ UNCHANGED <<steps, over, place>>
    /\ sender' = Closed
    /\ locked' = IF locked = "send" THEN "none" ELSE locked
    /\ UNCHANGED <<row, seq, parked, looked, procs, wrong, left>>

-----------------------------------------------------------------------------
\* The job begins, or goes on.

Begin(w) == [worker |-> w, token |-> seq + 1, got |-> steps, at |-> "runs", decided |-> 0]
Outdated(w) == IF Rule("an outdated process ends") THEN {p \in procs : p.worker = w /\ p.at = "parked"} ELSE {}

Claim(w) ==
    /\ place = "waiting"
    /\ place' = "running" /\ row' = [token |-> seq + 1, worker |-> w] /\ seq' = seq + 1
    /\ \/ procs' = (procs \ Outdated(w)) \cup {Begin(w)} /\ UNCHANGED left
       \/ Can("breaks") /\ Use("breaks") /\ UNCHANGED procs
    /\ UNCHANGED <<signals, steps, parked, over, locked, sender, sent, looked, wrong>>

Recover(w) ==  \* The answer of the claim was lost: the job begins in a new process.
    /\ place = "running" /\ row.worker = w /\ ~\E p \in procs : Own(p)
    /\ looked = NoOne
    /\ procs' = (procs \ Outdated(w)) \cup {[Begin(w) EXCEPT !.token = row.token]}
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, locked, sender, sent, looked, wrong, left>>

Resume(w) ==
    /\ place = "suspended" /\ over /\ parked = w
    /\ place' = "running" /\ row' = [token |-> seq + 1, worker |-> w] /\ seq' = seq + 1
    /\ over' = FALSE /\ parked' = "none"
    /\ \/ /\ \E p \in procs : /\ p.worker = w /\ p.at = "parked"
                              /\ procs' = (procs \ {p}) \cup {[p EXCEPT !.token = seq + 1, !.at = "runs",
                                                               !.got = Append(@, steps[Len(steps)])]}
          /\ UNCHANGED left
       \/ (Can("breaks") \/ ~\E p \in procs : p.worker = w /\ p.at = "parked")
          /\ left' = [left EXCEPT !.breaks = IF @ > 0 THEN @ - 1 ELSE 0]
          /\ UNCHANGED procs
    /\ UNCHANGED <<signals, steps, locked, sender, sent, looked, wrong>>

EndWait ==  \* No worker has resumed it in time: any worker may claim it.
    /\ place = "suspended" /\ over
    /\ place' = "waiting" /\ over' = FALSE /\ parked' = "none"
    /\ UNCHANGED <<row, seq, signals, steps, locked, sender, sent, looked, procs, wrong, left>>

-----------------------------------------------------------------------------
\* suspend, in two halves: it looks for a signal, and then it receives that or moves the job.

Look(p) ==
    LET kept == Len(steps) > Len(p.got) /\ Rule("a kept step is found again")  \* Its answer was lost.
    IN
    /\ p \in procs /\ p.at = "runs" /\ Len(p.got) < Receives /\ Own(p) /\ looked = NoOne
    /\ Rule("lock the job first") => locked = "none"
    /\ locked' = IF Rule("lock the job first") THEN "suspend" ELSE locked
    /\ looked' = [token |-> p.token, found |-> IF kept THEN 0 ELSE Least(signals), kept |-> kept, orphan |-> FALSE]
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, sender, sent, procs, wrong, left>>

Receive ==
    /\ signals' = signals \ {looked.found}
    /\ steps' = IF looked.found # 0 THEN Append(steps, looked.found) ELSE steps

Unlock == looked' = NoOne /\ locked' = IF locked = "suspend" THEN "none" ELSE locked

GoOn(p, value) == procs' = (procs \ {p}) \cup {[p EXCEPT !.got = Append(@, value)]}

Stay(p) ==  \* What was decided about this attempt must not be done to the next one: the process ends.
    IF p.decided # 0 /\ Rule("a decision is about one attempt") THEN procs' = procs \ {p}
    ELSE procs' = (procs \ {p}) \cup {[p EXCEPT !.at = "parked"]}

Suspend(p) ==
    /\ p \in procs /\ looked.token = p.token /\ Own(p) /\ ~looked.orphan
    /\ Receive
    /\ IF looked.kept \/ looked.found # 0
       THEN /\ UNCHANGED <<place, row, parked>>
            /\ \/ GoOn(p, IF looked.kept THEN steps[Len(p.got) + 1] ELSE looked.found) /\ UNCHANGED left
               \/ Can("breaks") /\ Use("breaks") /\ UNCHANGED procs  \* It asks again.
       ELSE /\ place' = "suspended" /\ row' = NoRow /\ parked' = p.worker
            /\ \/ Stay(p) /\ UNCHANGED left
               \/ Can("breaks") /\ Use("breaks") /\ UNCHANGED procs
    /\ Unlock
    /\ UNCHANGED <<seq, over, sender, sent, wrong>>

SuspendOrphan ==  \* The server goes on with it after the process has died.
    /\ looked.orphan /\ place = "running" /\ row.token = looked.token
    /\ Receive
    /\ row' = NoRow
    /\ IF looked.kept \/ looked.found # 0 THEN place' = "waiting" /\ UNCHANGED parked  \* The attempt is released.
       ELSE place' = "suspended" /\ parked' = row.worker
    /\ Unlock
    /\ UNCHANGED <<seq, over, sender, sent, procs, wrong, left>>

GiveUp ==  \* Nothing is written, and the attempt is released.
    /\ looked.orphan
    /\ place' = "waiting" /\ row' = NoRow
    /\ Unlock
    /\ UNCHANGED <<seq, signals, steps, parked, over, sender, sent, procs, wrong, left>>

Finish(p) ==
    /\ p \in procs /\ p.at = "runs" /\ Len(p.got) = Receives /\ Own(p)
    /\ place' = "ended" /\ row' = NoRow
    /\ procs' = procs \ {p}
    /\ wrong' = IF p.got = steps THEN wrong ELSE wrong \cup {"a result without its steps"}
    /\ UNCHANGED <<seq, signals, steps, parked, over, locked, sender, sent, looked, left>>

-----------------------------------------------------------------------------
\* Faults.

Lose ==
    /\ place = "running" /\ looked = NoOne /\ Can("losses") /\ Use("losses")
    /\ place' = "waiting" /\ row' = NoRow
    /\ UNCHANGED <<seq, signals, steps, parked, over, locked, sender, sent, looked, procs, wrong>>

Learn(p) ==  \* The attempt is no longer its worker's: the process is killed.
    /\ p \in procs /\ p.at = "runs" /\ ~Own(p)
    /\ procs' = procs \ {p}
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, locked, sender, sent, looked, wrong, left>>

Charge(p) == IF Own(p) THEN place' = "waiting" /\ row' = NoRow ELSE UNCHANGED <<place, row>>

Kill(p) ==
    /\ p \in procs /\ Can("kills") /\ Use("kills")
    /\ IF p.at = "parked" \/ looked.token # p.token
       THEN procs' = procs \ {p} /\ Charge(p) /\ UNCHANGED looked
       ELSE \* Its wait may be in the database already.
            /\ looked' = [looked EXCEPT !.orphan = TRUE]
            /\ procs' = (procs \ {p}) \cup
                IF Rule("begin no job whose wait may be written") THEN {} ELSE {[p EXCEPT !.got = <<>>]}
            /\ UNCHANGED <<place, row>>
    /\ UNCHANGED <<seq, signals, steps, parked, over, locked, sender, sent, wrong>>

Decide(p) ==
    /\ p \in procs /\ p.at = "runs" /\ p.decided = 0 /\ Can("timeouts") /\ Use("timeouts")
    /\ procs' = (procs \ {p}) \cup {[p EXCEPT !.decided = p.token]}
    /\ UNCHANGED <<place, row, seq, signals, steps, parked, over, locked, sender, sent, looked, wrong>>

Execute(p) ==
    /\ p \in procs /\ p.at = "runs" /\ p.decided # 0 /\ looked.token # p.token
    /\ procs' = procs \ {p}
    /\ Charge(p)
    /\ wrong' = IF Own(p) /\ p.decided # p.token THEN wrong \cup {"charged for another attempt"} ELSE wrong
    /\ UNCHANGED <<seq, signals, steps, parked, over, locked, sender, sent, looked, left>>

-----------------------------------------------------------------------------
Next ==
    \/ Open \/ LockForSend \/ Send \/ EndWait \/ SuspendOrphan \/ GiveUp \/ Lose
    \/ \E w \in Workers : Claim(w) \/ Recover(w) \/ Resume(w)
    \/ \E p \in procs : Look(p) \/ Suspend(p) \/ Finish(p) \/ Learn(p) \/ Kill(p) \/ Decide(p) \/ Execute(p)

Fairness ==
    /\ WF_vars(Open) /\ SF_vars(LockForSend) /\ WF_vars(Send) /\ WF_vars(EndWait) /\ WF_vars(SuspendOrphan \/ GiveUp)
    /\ \A w \in Workers : WF_vars(Claim(w)) /\ WF_vars(Recover(w))
    /\ SF_vars(\E p \in procs : Look(p)) /\ WF_vars(\E p \in procs : Suspend(p)) /\ WF_vars(\E p \in procs : Finish(p))
    /\ WF_vars(\E p \in procs : Learn(p)) /\ WF_vars(\E p \in procs : Execute(p))

Spec == Init /\ [][Next]_vars /\ Fairness

Values(s) == {s[i] : i \in 1..Len(s)}
NoSignalTwice == Cardinality(Values(steps)) = Len(steps) /\ Values(steps) \cap signals = {}
NoSignalLost == Values(steps) \cup signals = 1..sent
CodeKnowsItsSteps == \A p \in procs : Own(p) => Len(p.got) <= Len(steps) /\ p.got = SubSeq(steps, 1, Len(p.got))
OneProcess == Cardinality({p \in procs : Own(p) /\ p.at = "runs"}) <= 1
NoProcessWithoutAttempt == left.losses = Losses /\ left.breaks = Breaks =>
    \A p \in procs : p.at = "runs" => Own(p)
NothingWrong == wrong = {}
TheJobEnds == <>(place = "ended")
=============================================================================
