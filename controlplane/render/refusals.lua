-- Answers to what the gateway refuses; `txn.refusal` has the status over HTTP, the one of gRPC, and the reason.
-- After `http-request return` HAProxy resets what a client still sends, and many clients see the reset instead of
-- the answer. After the answer of a service it reads the rest of the body and throws it away.
core.register_service("refuse", "http", function(applet)
  local status, code, reason = applet:get_var("txn.refusal"):match("^(%d+) (%d+) (.*)$")
  if status == "429" or status == "503" then
    applet:add_header("retry-after", applet:get_var("txn.retry_after_s") or "1")
  end
  if applet.f:fe_name() == "grpc" then
    applet:set_status(200)
    applet:add_header("content-type", "application/grpc")
    applet:add_header("grpc-status", code)
    applet:add_header("grpc-message", reason)
    applet:start_response()
    return
  end
  if status == "401" then
    applet:add_header("www-authenticate", "Bearer")
  end
  local body = '{"error":"' .. reason .. '"}'
  applet:set_status(tonumber(status))
  applet:add_header("content-type", "application/json")
  applet:add_header("content-length", #body)
  applet:start_response()
  applet:send(body)
end)
