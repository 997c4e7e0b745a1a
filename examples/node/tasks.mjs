// tasks.mjs
export default {
  'text.slug': ({ text }) => text.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, ''),
  'text.count': async ({ text }, step) => {
    const words = await step('words', () => text.split(/\s+/).length)
    return { words, letters: await step('letters', () => text.length) }
  },
}
