// A program of Go that computes in a function of C, on the stack of its thread, and in Go, on that of a goroutine.
package main

// unsigned long result;
//
// __attribute__((noipa)) static void compute_in_c(void) {
//     for (int i = 0; i < 100000; i++)
//         result = result * 31 + i;
// }
import "C"

var result uint64

//go:noinline
func compute() {
	for i := uint64(0); i < 100000; i++ {
		result = result*31 + i
	}
}

//go:noinline
func both() {
	compute()
	C.compute_in_c()
}

func main() {
	for {
		both()
	}
}
