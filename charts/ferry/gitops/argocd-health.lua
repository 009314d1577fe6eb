-- Health of a StreamJob for Argo CD: the value of resource.customizations.health.ferry.dev_StreamJob in argocd-cm.
local status = obj.status
if status == nil or status.observedGeneration == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not seen this generation yet"}
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function says(kind)
  local condition = conditions[kind]
  if condition == nil then
    return status.phase
  end
  if condition.message == nil or condition.message == "" then
    return condition.reason
  end
  return condition.message
end

if is("SpecInForce", "False") then
  return {status = "Degraded", message = says("SpecInForce")}
end
if status.phase == "Failed" or status.phase == "Degraded" then
  return {status = "Degraded", message = says("Degraded")}
end
if conditions.Deploying ~= nil and conditions.Deploying.reason == "Refused" then
  return {status = "Degraded", message = says("Deploying")}
end
if status.phase == "Finished" then
  return {status = "Healthy", message = "all input was read"}
end
if status.phase == "Suspended" then
  return {status = "Suspended", message = says("Ready")}
end
if is("Deploying", "True") then
  return {status = "Progressing", message = says("Deploying")}
end
if status.phase == "Moving" then
  return {status = "Progressing", message = says("Handover")}
end
if status.phase ~= "Running" or not is("Ready", "True") then
  return {status = "Progressing", message = says("Ready")}
end
if conditions.SpecInForce ~= nil and conditions.SpecInForce.reason == "Unproven" then
  return {status = "Progressing", message = says("SpecInForce")}
end
return {status = "Healthy", message = says("Ready")}
