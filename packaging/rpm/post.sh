# Nothing is started at the first installation.
systemd-sysusers instep.conf || echo "instep: the user of the service could not be made; see above" >&2
systemctl daemon-reload >/dev/null 2>&1 || :
