// tasks.mjs
export default {
  'text.slug': ({ text }) => text.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, ''),
  'text.count': async ({ text }) => ({ words: text.split(/\s+/).length, letters: text.length }),
}
