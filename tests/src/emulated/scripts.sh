while read -r number; do
    [ -f "$shared/$number.sh" ] || continue
    run_script "$shared/$number.sh" >"$shared/$number.out" 2>&1 </dev/null
    echo $? >"$shared/$number.part"
    mv "$shared/$number.part" "$shared/$number.code"
done
poweroff -f
