// Hashes, sorts and writes until it is killed.
package main

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"os"
	"sort"
	"strings"
)

type table struct{ counts map[uint64]int }

//go:noinline
func (t *table) count(key uint64) { t.counts[key&1023]++ }

//go:noinline
func checksum(bytes []byte) (sum uint64) {
	for _, b := range bytes {
		sum = sum*31 + uint64(b)
	}
	return
}

func main() {
	bytes := make([]byte, 1<<16)
	t := table{map[uint64]int{}}
	sum := uint64(1)
	for {
		digest := sha256.Sum256(bytes)
		bytes[0] = digest[0]
		sum += uint64(crc32.ChecksumIEEE(bytes)) + checksum(bytes) + checksum(bytes[100:])
		values := make([]int, 2048)
		for i := range values {
			sum = sum*6364136223846793005 + 1442695040888963407
			values[i] = int(sum >> 40)
			t.count(sum >> 33)
		}
		sort.Ints(values)
		text := strings.Repeat("a b c ", 200)
		if strings.Count(text, "b") == 0 || len(fmt.Sprintf("%d %x", sum, digest)) == 0 {
			os.Exit(1)
		}
	}
}
