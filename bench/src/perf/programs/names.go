// Names that are hard to read: methods, closures, generic functions and types, wrappers.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"text/template"
)

type number interface{ ~int | ~float64 }

type list[T any] struct {
	items []T
	mutex sync.Mutex
}

//go:noinline
func (l *list[T]) push(item T) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.items = append(l.items, item)
}

//go:noinline
func (l *list[T]) each(visit func(int, T) bool) {
	for index, item := range l.items {
		if !visit(index, item) {
			return
		}
	}
}

//go:noinline
func sum[T number](items ...T) (total T) {
	add := func(item T) { total += item }
	for _, item := range items {
		add(item)
	}
	return
}

type pair[K cmp.Ordered, V any] struct {
	key   K
	value V
}

func (p pair[K, V]) String() string { return fmt.Sprint(p.key, "=", p.value) }

type shape interface{ area() float64 }
type square struct{ side float64 }
type named struct {
	square
	name string
}
type byArea []shape

//go:noinline
func (s square) area() float64     { return s.side * s.side }
func (b byArea) Len() int           { return len(b) }
func (b byArea) Less(i, j int) bool { return b[i].area() < b[j].area() }
func (b byArea) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }

type failure struct{ code int }

func (f *failure) Error() string { return fmt.Sprintf("failure %d", f.code) }

var table = func() map[string]func(int) int {
	return map[string]func(int) int{"twice": func(n int) int { return n * 2 }}
}()

func init() { table["next"] = func(n int) int { return n + 1 } }

//go:noinline
func run(name string) (err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("run: %w", &failure{len(name)})
		}
	}()
	return func() error { return func() error { panic(name) }() }()
}

func main() {
	numbers, texts := &list[int]{}, &list[pair[string, float64]]{}
	for n := range 10 {
		numbers.push(n)
		texts.push(pair[string, float64]{fmt.Sprint(n), float64(n)})
	}
	total := sum(1.5, 2.5)
	for index, item := range numbers.each {
		total += float64(index * item)
	}
	texts.each(func(_ int, item pair[string, float64]) bool { total += item.value; return true })
	shapes := byArea{square{2}, named{square{1}, "one"}, &named{}}
	sort.Sort(shapes)
	area := shapes[1].area
	keys := slices.Sorted(maps.Keys(table))
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(b, a) })
	var failed *failure
	total += area() + float64(sum(table["twice"](1), len(keys)))
	if errors.As(run("x"), &failed) {
		total++
	}
	var group sync.WaitGroup
	group.Go(func() { numbers.push(int(total)) })
	group.Wait()
	text := template.Must(template.New("t").Parse("{{range .}}{{.}} {{end}}"))
	if err := text.Execute(io.MultiWriter(os.Stdout, &strings.Builder{}), keys); err != nil {
		panic(err)
	}
	encoded, _ := json.Marshal(map[string]any{"total": total, "match": regexp.MustCompile("(a|b)+").FindString("xab")})
	fmt.Println(string(encoded), texts.items)
}
