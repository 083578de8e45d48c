// Goroutines: some compute in chains of calls, one makes system calls, two send each other messages, and one allocates,
// so that the collector runs.
package main

import (
	"os"
	"syscall"
)

var result uint64
var kept [64][]byte

//go:noinline
func inner(value uint64) uint64 {
	for i := uint64(0); i < 100000; i++ {
		value = value*31 + i
	}
	return value
}

//go:noinline
func middle(value uint64) uint64 {
	return inner(value) + 1
}

//go:noinline
func outer(value uint64) uint64 {
	return middle(value) ^ 5
}

func compute() {
	value := uint64(0)
	for {
		value = outer(value)
		result = value
	}
}

// A read of a file goes through the scheduler of goroutines; getppid does not.
//
//go:noinline
func call(file *os.File, bytes []byte) {
	if _, err := file.Read(bytes); err != nil {
		os.Exit(1)
	}
	syscall.Getppid()
}

func calls() {
	file, err := os.Open("/dev/zero")
	if err != nil {
		os.Exit(1)
	}
	bytes := make([]byte, 4096)
	for {
		call(file, bytes)
	}
}

func passes(from, to chan uint64) {
	for {
		to <- <-from + 1
	}
}

func allocates() {
	for i := 0; ; i++ {
		kept[i%len(kept)] = make([]byte, 1000+i%9000)
	}
}

func main() {
	there, back := make(chan uint64), make(chan uint64)
	go compute()
	go calls()
	go allocates()
	go passes(there, back)
	there <- 0
	passes(back, there)
}
