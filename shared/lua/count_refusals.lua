-- count_refusals: counts refusals that a door repeated instead of asking, because the store had just answered the same.
-- KEYS
-- ARGV
--   tenant text · the tenant whose requests were refused
--   slug text · the name of the pool's model in the form used in store keys
--   reason text · the reason, which depends on the load
--   tokens int · the sum of the tokens of the requests, of their prompts and at most of their answers
--   hints rest · the retry hint of each request, in ms
-- ANSWERS counted
-- KEEPS 6 9
-- USES clock oom_write mark stats history

local refused = #ARGV - hints + 1
stats.count('offered_tokens', tokens)
stats.count('load_refusals|' .. slug, refused)
stats.count('yielded', refused)
stats.count('refused|' .. stats.label_of(tenant) .. '|' .. reason, refused)
history.count_in_history(tenant, slug, 'refused.' .. reason, refused)
for i = hints, #ARGV do
  stats.observe('retry_hint', tonumber(ARGV[i]))
end
return { 'counted' }
