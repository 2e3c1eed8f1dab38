-- slug: converts a model's name to the form used in store keys.
-- KEYS

-- Must agree with `model_slug` in shared/store/keys.py: each character but ASCII letters, digits, `.`, `_` and `-`
-- becomes `-`. In UTF-8, a character is one byte that is not a continuation byte, followed by its continuation bytes.
local function slug_of(model)
  return (string.gsub(string.gsub(model, '[\128-\191]', ''), '[^A-Za-z0-9._-]', '-'))
end
