-- offers: the offers of a job whose clients may not have its id, in the field penstock_offer, separated by spaces.

-- With more offers than this, the job cannot be taken back any more.
local MAX_OFFERS = 8

-- Returns the offers with this one added, or '' if the job cannot be taken back.
local function with_offer(offers, offer)
  if type(offers) ~= 'string' or offers == '' or offer == '' then
    return ''
  end
  if string.find(' ' .. offers .. ' ', ' ' .. offer .. ' ', 1, true) then
    return offers
  end
  local _, spaces = string.gsub(offers, ' ', '')
  return spaces + 2 > MAX_OFFERS and '' or offers .. ' ' .. offer
end

-- Returns the offers without this one, or nil if it is not among them.
local function without_offer(offers, offer)
  local others, found = {}, false
  for one in string.gmatch(offers or '', '%S+') do
    if one == offer then
      found = true
    else
      others[#others + 1] = one
    end
  end
  return found and table.concat(others, ' ') or nil
end
