#!/bin/sh
# Makes the certificates of the tests again, valid from 1999 to 2150: a simulation's date is in 2000 to 2100. The keys protect nothing.
set -eu
cd "$(dirname "$0")"
dates="-startdate 19990101000000Z -enddate 21500101000000Z"
work=$(mktemp -d)
: >"$work/index"
printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nnew_certs_dir=%s\nrand_serial=yes\ndefault_md=sha256\nunique_subject=no\npolicy=p\n[p]\ncommonName=supplied\n' \
    "$work" "$work" >"$work/conf"

root() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/$1.key" -out "$work/$1.csr" -subj "/CN=$1"
    printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n' >"$work/ext"
    openssl ca -batch -notext -config "$work/conf" -selfsign -keyfile "$work/$1.key" -in "$work/$1.csr" $dates \
        -extfile "$work/ext" -out "$1.pem"
}

# Name, arguments for the key, usage, names, and dates if they are others.
leaf() {
    openssl req -new $2 -nodes -keyout "$1.key" -out "$work/csr" -subj "/CN=$1"
    printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=%s\n' "$4" "$3" >"$work/ext"
    openssl ca -batch -notext -config "$work/conf" -cert root.pem -keyfile "$work/root.key" -in "$work/csr" ${5:-$dates} \
        -extfile "$work/ext" -out "$1.pem"
}

p256="-newkey ec -pkeyopt ec_paramgen_curve:P-256"
# 10.0.2.2 is this host for a VM on the user network.
names=DNS:server.test,DNS:localhost,IP:127.0.0.1,IP:10.0.2.2
root root
root other
leaf server "$p256" serverAuth $names
leaf renewed "$p256" serverAuth $names
leaf expired "$p256" serverAuth $names "-startdate 19900101000000Z -enddate 19990101000000Z"
leaf p384 "-newkey ec -pkeyopt ec_paramgen_curve:P-384" serverAuth $names
leaf rsa "-newkey rsa:2048" serverAuth $names
leaf ed25519 "-newkey ed25519" serverAuth $names
leaf client "$p256" clientAuth DNS:client.test
openssl ec -in server.key -out server.sec1.key
rm -r "$work"
