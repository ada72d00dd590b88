
# The host's end of the channel, descriptor 3; the protocol is told in channel.rs. What a command left
# running may go on writing: what is answered is a copy, and each command has files of its own.
dir=${lab_dir:-/run/lab}
# copied NAME MOST: the first bytes of a command's output; what is beyond is said and is a failure.
copied() {
    size=$(stat -c %s "$dir/$1.$id")
    head -c "${lab_most:-$2}" "$dir/$1.$id" >"$dir/$1"
    rm -f "$dir/$1.$id"
    passed=$(stat -c %s "$dir/$1")
    [ "$passed" -ge "$size" ] && return
    status=125
    cut="$cut
instep-lab: of $size bytes of output $passed are passed on"
}
while :; do
    # At the end of the stream nobody listens outside.
    read -r word id limit command <&3 || { sleep 0.1; continue; }
    [ "$word" = run ] || continue
    echo "$command" | base64 -d >"$dir/command" 2>/dev/null
    (while sleep "${lab_beat:-5}"; do echo "alive $id"; done) >&3 2>/dev/null &
    beat=$!
    timeout -k 5 "$limit" sh "$dir/command" >"$dir/out.$id" 2>"$dir/err.$id" </dev/null 3<&-
    status=$?
    # Gone before the answer begins.
    kill $beat
    wait $beat 2>/dev/null
    cut=
    copied out 50331648
    copied err 8388608
    printf %s "$cut" >>"$dir/err"
    {
        echo "end $id $status $(stat -c %s "$dir/out") $(stat -c %s "$dir/err")"
        cat "$dir/out" "$dir/err"
    } >&3
done
