package main

import "os"

type worker struct{ sum uint64 }

func inner(n uint64) uint64 { return n * 3 }

//go:noinline
func (w *worker) crunch(n int) {
	for i := 0; i < n; i++ {
		w.sum += inner(uint64(i))
	}
}

func main() {
	w := &worker{}
	w.crunch(1000)
	if w.sum == 1 {
		os.Exit(1)
	}
}
