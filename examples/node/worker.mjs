// A worker in Node: it claims jobs by SQL, and runs each one in a process of its own.
//     npm install pg && OUTLIVE_DATABASE_URL=postgresql://… node worker.mjs ./tasks.mjs
// It is alive for as long as its connection lasts. If that is lost, it ends, and whatever started it starts it again.
import { fork } from 'node:child_process'
import { hostname } from 'node:os'
import { fileURLToPath, pathToFileURL } from 'node:url'

const SLOTS = 4
const LOOK_MS = 1_000 // A notification usually comes sooner.
const RENEW_MS = 20_000 // Much less than a lease (5 minutes), and than the time of a worker without a heartbeat (2).
const TIMEOUT_MS = 600_000
const GRACE_MS = 20_000

const { default: tasks } = await import(pathToFileURL(process.argv[2]))
if (process.send) runJob()
else await work()

function runJob() {
  const asked = []
  const ask = (question) =>
    new Promise((resolve, reject) => process.send({ asks: asked.push({ resolve, reject }) - 1, ...question }))
  let kept
  const step = async (name, run) => {
    const known = await (kept ??= ask({}).then((rows) => new Map(rows)))
    if (!known.has(name)) known.set(name, await ask({ name, value: JSON.stringify((await run()) ?? null) }))
    return known.get(name)
  }

  process.once('disconnect', () => process.exit(1)) // The worker is dead.
  process.on('message', async ({ task, args, answers, value, error }) => {
    if (answers !== undefined) return error ? asked[answers].reject(new Error(error)) : asked[answers].resolve(value)
    const end = await Promise.resolve(args)
      .then((args) => tasks[task](args, step))
      .then((result) => ({ ok: true, result: JSON.stringify(result ?? null) }))
      .catch((error) => ({ error: String(error), stack: error?.stack }))
    process.send(end, () => process.exit(0))
  })
}

async function work() {
  const { default: pg } = await import('pg')
  const db = new pg.Client(process.env.OUTLIVE_DATABASE_URL)
  const die = (error) => (console.error(`worker ${me}: ${error.message}`), process.exit(1))
  const call = async (sql, ...values) => (await db.query(sql, values)).rows
  const running = new Map() // Token: { child, verdict }
  let me, claiming = false, stopping = false

  db.on('error', die)
  await db.connect()
  const register = 'select outlive.register($1, $2, slots => $3, hostname => $4, pid => $5, version => $6) as id'
  me = (await call(register, 'node', Object.keys(tasks), SLOTS, hostname(), process.pid, process.version))[0].id
  db.on('notification', ({ payload }) => (['cancel', 'drain'].includes(payload) ? renew() : claim()).catch(die))
  await db.query('listen outlive')
  setInterval(() => claim().catch(die), LOOK_MS)
  setInterval(() => renew().catch(die), RENEW_MS)
  process.once('SIGTERM', () => stop().catch(die))
  console.log(`worker ${me} started`)

  async function claim() {
    if (claiming || stopping || running.size >= SLOTS) return
    claiming = true
    const jobs = await call('select * from outlive.claim($1, $2)', me, SLOTS - running.size)
    claiming = false
    for (const job of jobs) start(job)
  }

  function start({ token, task, args }) {
    const child = fork(fileURLToPath(import.meta.url), process.argv.slice(2))
    const one = { child }
    const late = setTimeout(() => end(one, 'timed_out'), TIMEOUT_MS)
    let said
    running.set(token, one)
    child.on('message', async (message) => {
      if (message.asks === undefined) return (said = message)
      const answer = await about(token, message).then((value) => ({ value }), ({ message }) => ({ error: message }))
      child.send({ answers: message.asks, ...answer }, () => {}) // It may be gone.
    })
    child.once('exit', async (code, signal) => {
      clearTimeout(late)
      await report(token, one.verdict, said, code, signal).catch((error) => error.code === 'OL002' || die(error))
      running.delete(token)
      claim().catch(die)
    })
    child.send({ task, args })
  }

  async function about(token, { name, value }) {
    if (name === undefined) return (await insist('select * from outlive.kept_steps($1, $2)', me, token)).map(Object.values)
    return (await insist('select outlive.keep_step($1, $2, $3, $4) as value', me, token, name, value))[0].value
  }

  async function report(token, verdict, said, code, signal) {
    if (verdict === 'lost') return
    if (!verdict && said?.ok)
      try {
        return await insist('select outlive.succeed($1, $2, $3)', me, token, said.result)
      } catch (error) {
        if (!/^(22|54|OL003)/.test(error.code)) throw error
        said = { error: `its result can't be stored: ${error.message}` }
      }
    const outcome = verdict ?? (said ? 'failed' : 'crashed')
    const texts = [said?.error ?? `its process ended: ${signal ?? `exit code ${code}`}`, said?.stack ?? '']
    const fail = 'select outlive.fail($1, $2, $3, stack => $4, outcome => $5, exit_code => $6, signal => $7)'
    return insist(fail, me, token, ...texts.map((text) => text.replaceAll('\0', '')), outcome, code, signal)
  }

  async function insist(sql, ...values) {
    for (;;)
      try {
        return await call(sql, ...values)
      } catch (error) {
        if (!/^(40|55P03)/.test(error.code)) throw error // Else another transaction is in the way.
        await new Promise((resolve) => setTimeout(resolve, 1_000))
      }
  }

  function end(one, verdict) {
    if (one) one.verdict ??= verdict
    one?.child.kill('SIGKILL')
  }

  async function renew() {
    const sql = 'select * from outlive.renew($1, $2, draining => $3)'
    for (const { token, verdict } of await call(sql, me, [...running.keys()], stopping)) {
      if (verdict === 'drain') stop().catch(die)
      if (verdict === 'cancel') end(running.get(token), 'cancelled')
      if (verdict === 'lost') end(running.get(token), 'lost')
    }
  }

  async function stop() {
    if (stopping) return
    stopping = true // From now on its death is not charged to its jobs.
    await renew()
    for (const until = Date.now() + GRACE_MS; running.size && Date.now() < until; )
      await new Promise((resolve) => setTimeout(resolve, 50))
    for (const one of running.values()) end(one, 'lost') // They are given back.
    await call('select outlive.goodbye($1)', me)
    process.exit(0)
  }
}
