-- preemption: says whether running jobs are paused in favor of other tenants.
-- KEYS
-- USES settings
-- With preemption, a running job is charged what it has cost so far. Without it, the job is charged its estimated cost
-- when it is claimed: its tenant cannot lose the slot before the job ends.
local function is_preemptive()
  local preemption, fairness = read_settings('preemption', 'fairness')
  return preemption == 'on' or preemption == 'auto' and fairness ~= 'turns'
end
