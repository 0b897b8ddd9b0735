#!/bin/sh
# The host's own dead-man: undoes a release that nobody confirmed, by deadline, at boot, and in a crash loop.
# It needs sh, coreutils, grep and sed; never ops, never the machine that deployed.
#
#   guard.sh watch DIR       supervisord program: boot duties once a boot, then the deadline
#   guard.sh boot DIR        systemd, before the engine: settle what a reboot interrupted
#   guard.sh expire DIR      systemd timer: the deadline
#   guard.sh rotate DIR      systemd timer: logs that grew too large
#   guard.sh run DIR [USER]        supervisord engine program: pre-start, then become the engine (as USER)
#   guard.sh wanted DIR            systemd ExecCondition: fails when it was stopped on purpose
#   guard.sh asked DIR             systemd ExecStop: notes a stop that somebody asked for
#   guard.sh pre-start DIR [USER]  systemd ExecStartPre: count unexpected exits, make the log (for USER)
#
# Exactly one of this script and the client wins the rename of guard/armed, so a release is either confirmed or undone.
set -u
command=$1
user=${3:-}
dir=$(cd "$2" && pwd -P) || exit 2
guard=$dir/guard
NCCL_CONF=/etc/nccl.conf
# shellcheck source=/dev/null
. "$guard/guard.conf" # SUPERVISOR SUPERVISORCTL SUPERVISORD_CONF ENGINE LOAD_TIMEOUT_S CRASH_LIMIT LOG_MAX_KIB RUN_AS

now() { date +%s; }

journal() { # $1: the event's fields as JSON, without braces
    file=$dir/journal.jsonl
    torn=
    if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then torn='
'; fi
    line=$(printf '%s{"at":%s,%s}' "$torn" "$(now)" "$1")
    printf '%s\n' "$line" >>"$file" 2>/dev/null || { make_room; printf '\n%s\n' "$line" >>"$file"; }
    sync "$file"
}

linked() { # $1: link name; prints the release, fails when there is none
    to=$(readlink "$dir/$1") && [ -d "$dir/$to" ] && basename "$to"
}

swap() { # $1: link name, $2: release
    ln -sfn "releases/$2" "$dir/.$1.guard" && mv -T "$dir/.$1.guard" "$dir/$1"
    sync "$dir"
}

make_room() { rm -f "$guard/reserve"; } # a full disk must not forbid the way back

put() { # $1: file, $2: text; replaces it whole, also on a full disk
    printf '%s' "$2" >"$1.new" 2>/dev/null || { make_room; printf '%s' "$2" >"$1.new"; }
    mv -f "$1.new" "$1"
}

target() { # $1: the release that is undone
    linked last-good && return
    staged=$(linked baseline) && [ "$staged" != "$1" ] && echo "$staged"
}

unit() { # systemd: make the installed unit that of `current`; a reload only where it differs
    [ "$SUPERVISOR" = systemd ] && [ -f "$dir/current/engine.service" ] || return 0
    installed=/etc/systemd/system/$ENGINE
    if [ "$(cat "$installed" 2>/dev/null)" != "$(cat "$dir/current/engine.service")" ]; then
        cp "$dir/current/engine.service" "$installed.guard" && mv -T "$installed.guard" "$installed"
        sync "$installed"
        systemctl daemon-reload
    fi
}

control() { "$SUPERVISORCTL" -c "$SUPERVISORD_CONF" "$@" >/dev/null; }

engine_start() {
    : >"$guard/ordered"
    case $SUPERVISOR in
    supervisord)
        control reread
        control update "$ENGINE"
        control start "$ENGINE"
        ;;
    systemd)
        unit
        systemctl --no-block restart "$ENGINE"
        ;;
    esac
}

engine_stop() {
    case $SUPERVISOR in
    supervisord) control stop "$ENGINE" ;;
    systemd) systemctl stop "$ENGINE" ;;
    esac
}

carrying() { # $1: NAME=VALUE; pids that were started with it. A container's root may have to ask as their user
    grep -lzxFs "$1" /proc/[0-9]*/environ | cut -d/ -f3
    if [ -n "${RUN_AS:-}" ] && [ "$(id -u)" = 0 ]; then
        setpriv --reuid="$RUN_AS" --regid="$(id -g "$RUN_AS")" --init-groups grep -lzxFs "$1" /proc/[0-9]*/environ | cut -d/ -f3
    fi
}

ours() { # pids of this instance: also ranks that re-parented to PID 1
    carrying "OPS_INSTANCE_DIR=$dir" | sort -u
}

sweep() {
    for pid in $(ours); do kill -9 "$pid" 2>/dev/null; done
}

serves() { # $1: release; true when our processes run it
    { ours && carrying "OPS_RELEASE=$1" | sort -u; } | sort | uniq -d | grep -q .
}

same() { # $1: file, $2: what it shall be a copy of; absent too
    if [ -f "$2" ]; then cp "$2" "$1.guard" && mv -T "$1.guard" "$1"; else rm -f "$1"; fi
}

nccl_conf() { # put /etc/nccl.conf into the state that release $1 wants (empty: none); ops.remote.lifecycle says how
    if [ -n "$1" ] && [ -f "$dir/releases/$1/nccl.conf" ]; then
        if [ ! -f "$guard/nccl.conf.ours" ]; then
            same "$guard/nccl.conf.before" "$NCCL_CONF" || return
            : >"$guard/nccl.conf.ours"
        fi
        same "$NCCL_CONF" "$dir/releases/$1/nccl.conf"
    elif [ -f "$guard/nccl.conf.ours" ]; then
        same "$NCCL_CONF" "$guard/nccl.conf.before"
        rm -f "$guard/nccl.conf.ours"
        rm -f "$guard/nccl.conf.before"
    fi
}

release_lock() { # $1: run; compare and delete
    if grep -qF "\"run\": \"$1\"" "$dir/lock" 2>/dev/null; then rm -f "$dir/lock"; fi
}

settle() { # $1: boot|deadline|crash-loop. guard/fired is ours: go back to the last good release
    make_room
    # shellcheck source=/dev/null
    . "$guard/fired" # RUN RELEASE DEADLINE BOOT BASELINE
    if back=$(target "$RELEASE"); then
        if [ "$1" = deadline ]; then
            if [ "$(linked current)" = "$back" ] && serves "$back"; then
                : # the old server was never stopped
            else
                engine_stop
                sweep
                swap current "$back"
                nccl_conf "$back"
                if [ "$(cat "$guard/wanted" 2>/dev/null)" != stopped ]; then engine_start; fi
            fi
        else
            swap current "$back"
            nccl_conf "$back"
            unit
        fi
        journal "\"event\":\"restored\",\"run\":\"$RUN\",\"release\":\"$back\",\"undone\":\"$RELEASE\",\"by\":\"guard\",\"reason\":\"$1\",\"gated\":false"
    else
        if [ "$1" = deadline ]; then
            engine_stop
            sweep
        fi
        rm -f "$dir/current"
        nccl_conf ''
        put "$guard/wanted" stopped
        journal "\"event\":\"restored\",\"run\":\"$RUN\",\"release\":null,\"undone\":\"$RELEASE\",\"by\":\"guard\",\"reason\":\"$1\",\"gated\":false"
    fi
    rm -f "$dir/pending"
    release_lock "$RUN"
    rm -f "$guard/fired"
}

finish() { # guard/confirmed: the commit point was passed; do what follows it
    make_room
    # shellcheck source=/dev/null
    . "$guard/confirmed"
    swap last-good "$RELEASE"
    if [ "${BASELINE:-no}" = yes ]; then swap baseline "$RELEASE"; fi
    rm -f "$dir/pending"
    journal "\"event\":\"confirmed-late\",\"run\":\"$RUN\",\"release\":\"$RELEASE\",\"by\":\"guard\""
    release_lock "$RUN"
    rm -f "$guard/confirmed"
}

claim() { # true when guard/fired is ours to settle
    [ -f "$guard/fired" ] || mv -T "$guard/armed" "$guard/fired" 2>/dev/null ||
        mv -T "$guard/armed.client" "$guard/fired" 2>/dev/null
}

boot() {
    : >"$guard/ordered"
    if [ -f "$guard/confirmed" ]; then finish; elif claim; then settle boot; fi
}

overdue() { # $1: marker
    # shellcheck source=/dev/null
    [ -f "$1" ] && . "$1" && [ "$(now)" -ge "$DEADLINE" ]
}

expire() {
    if [ -f "$guard/fired" ]; then
        settle deadline
        return
    fi
    { overdue "$guard/armed" || overdue "$guard/armed.client"; } 2>/dev/null || return 0
    claim || return 0
    # A client may have moved the deadline between the look and the rename; then it is armed again.
    if overdue "$guard/fired"; then settle deadline; else mv -T "$guard/fired" "$guard/armed"; fi
}

pre_start() {
    AT=0 COUNT=0 RELEASE=
    if [ -f "$guard/ordered" ]; then
        rm -f "$guard/ordered" "$guard/asked"
    elif [ -f "$guard/asked" ]; then
        rm -f "$guard/asked" # `systemctl restart` by a person is no crash
    else
        # shellcheck source=/dev/null
        if [ -f "$guard/started" ]; then . "$guard/started"; fi
        # A load takes at most LOAD_TIMEOUT_S, so after twice that it served at least that long.
        if [ "$(($(now) - AT))" -ge "$((2 * LOAD_TIMEOUT_S))" ]; then COUNT=0; fi
        COUNT=$((COUNT + 1))
        sweep
        journal "\"event\":\"engine-exit\",\"release\":\"$RELEASE\",\"count\":$COUNT"
        if [ "$COUNT" -ge "$CRASH_LIMIT" ]; then
            if claim; then
                settle crash-loop
                COUNT=0
            elif base=$(linked baseline) && [ "$(linked current)" != "$base" ]; then
                journal "\"event\":\"fallback\",\"from\":\"$(linked current)\",\"release\":\"$base\",\"by\":\"guard\",\"reason\":\"crash-loop\",\"gated\":false"
                swap current "$base"
                nccl_conf "$base"
                unit
                COUNT=0
            fi
        fi
    fi
    put "$guard/started" "$(printf 'AT=%s\nCOUNT=%s\nRELEASE=%s' "$(now)" "$COUNT" "$(linked current)")"
    log=$dir/logs/$(linked current).log
    (umask 027 && : >>"$log")
    if [ -n "$user" ]; then chown "$user:" "$log"; fi
}

rotate() { # keep one older log a release; the engine appends, so it goes on in the emptied file
    for log in "$dir"/logs/*.log; do
        [ -f "$log" ] || continue
        if [ "$(($(stat -c %s "$log") / 1024))" -ge "$LOG_MAX_KIB" ]; then cp "$log" "$log.1" && : >"$log"; fi
    done
}

boot_identity() { # supervisord's pid and start time: a container restart is a boot, whatever the kernel says
    echo "$PPID:$(sed 's/.*) //' "/proc/$PPID/stat" | cut -d' ' -f20)"
}

case $command in
watch)
    identity=$(boot_identity)
    if [ -f "$guard/boot" ] && [ "$(cat "$guard/boot")" != "$identity" ]; then
        boot
        printf '%s\n' "$identity" >"$guard/boot"
        if [ "$(cat "$guard/wanted" 2>/dev/null)" = running ] && linked current >/dev/null; then engine_start; fi
    fi
    printf '%s\n' "$identity" >"$guard/boot"
    while :; do
        expire
        rotate
        sleep 1
    done
    ;;
boot) boot ;;
expire) expire ;;
rotate) rotate ;;
pre-start) pre_start ;;
asked) # systemd calls this after a crash too, but then without a main process. The result tells nothing: an engine
    # that was asked to stop ends by killing itself.
    if [ -n "${MAINPID:-}" ]; then : >"$guard/asked"; fi
    ;;
wanted) [ "$(cat "$guard/wanted" 2>/dev/null)" != stopped ] ;;
run)
    pre_start
    # What the unit's LimitNOFILE does under systemd. A hard limit of "unlimited" is more than some kernels take.
    # shellcheck disable=SC3045 # dash, bash and busybox know -S and -H; another shell leaves the limit as it is
    ulimit -S -n "$(ulimit -H -n)" 2>/dev/null || :
    if [ -n "$user" ] && [ "$(id -un)" != "$user" ]; then
        exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --reset-env "$dir/current/launch.sh"
    fi
    exec "$dir/current/launch.sh"
    ;;
*)
    echo "guard.sh: unknown command $command" >&2
    exit 2
    ;;
esac
