//! Instances of much of Rust's library, and of names that are hard to read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::{fmt, io, iter, thread};

mod app {
    pub mod queue {
        pub struct Queue<T, const N: usize>(pub [Option<T>; N]);

        impl<T: Copy + PartialOrd, const N: usize> Queue<T, N> {
            pub fn largest(&self) -> Option<T> {
                fn greater<T: PartialOrd>(a: T, b: T) -> T {
                    if a > b { a } else { b }
                }
                self.0.iter().copied().flatten().reduce(|a, b| greater(a, b))
            }

            pub fn each<F: FnMut(&T)>(&self, function: F) {
                self.0.iter().flatten().for_each(function);
            }
        }

        impl<T, const N: usize> Drop for Queue<T, N> {
            fn drop(&mut self) {
                self.0.iter_mut().for_each(|place| *place = None);
            }
        }
    }

    pub trait Shape {
        const NAME: &'static str;
        fn area(&self) -> f64;
        fn describe(&self) -> String {
            let text = |digits: usize| format!("{} {:.*}", Self::NAME, digits, self.area());
            text(2)
        }
    }

    impl Shape for (f64, f64) {
        const NAME: &'static str = "rectangle";
        fn area(&self) -> f64 {
            self.0 * self.1
        }
    }

    impl<S: Shape> Shape for &[S] {
        const NAME: &'static str = "all";
        fn area(&self) -> f64 {
            self.iter().map(Shape::area).sum()
        }
    }

    pub async fn twice(value: u64) -> u64 {
        let inner = async move { value };
        inner.await + super::ready(value).await
    }
}

use app::{Shape as _, queue::Queue};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Entry<'a> {
    name: &'a str,
    values: Vec<u32>,
}

enum Tree {
    Leaf(i64),
    Node(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn fold<R>(&self, leaf: &dyn Fn(i64) -> R, node: &impl Fn(R, R) -> R) -> R {
        match self {
            Tree::Leaf(value) => leaf(*value),
            Tree::Node(left, right) => node(left.fold(leaf, node), right.fold(leaf, node)),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fold(&|value| value.to_string(), &|left, right| format!("({left} {right})")))
    }
}

async fn ready(value: u64) -> u64 {
    std::future::ready(value).await
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fn show(items: &[&dyn Display]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn apply<A, B>(function: fn(A) -> B, value: A) -> B {
    function(value)
}

fn read(mut input: impl io::BufRead) -> io::Result<HashMap<String, usize>> {
    let (mut counts, mut line) = (HashMap::new(), String::new());
    while input.read_line(&mut line)? > 0 {
        line.split_whitespace().for_each(|word| *counts.entry(word.to_owned()).or_insert(0) += 1);
        line.clear();
    }
    Ok(counts)
}

macro_rules! collections {
    ($($kind:ident),*) => { $({
        let mut all: $kind<_> = (0..20_u16).map(|index| Entry { name: "x", values: vec![index.into(); 2] }).collect();
        all.extend(iter::once(Entry::default()));
        println!("{}: {} {:?}", stringify!($kind), all.len(), all.iter().next());
    })* };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    collections!(Vec, VecDeque, LinkedList, BTreeSet, HashSet, BinaryHeap);
    let queue = Queue([Some(3_i8), None, Some(7)]);
    let mut seen = Vec::new();
    queue.each(|value| seen.push(*value));
    println!("{:?} {seen:?} {}", queue.largest(), [(1.0, 2.0), (3.0, 4.0)].as_slice().describe());
    let tree = Tree::Node(Box::new(Tree::Leaf(1)), Box::new(Tree::Leaf(2)));
    println!("{tree} {:?}", show(&[&1, &"two", &tree]));
    println!("{} {}", block_on(app::twice(4)), apply(<u8 as Into<u64>>::into, 7));
    let mut map: BTreeMap<(String, u8), Rc<RefCell<Vec<Entry<'_>>>>> = BTreeMap::new();
    map.entry(("a".to_owned(), 1)).or_default().borrow_mut().push(Entry::default());
    map.retain(|_, entries| !entries.borrow().is_empty());
    let (sender, receiver) = mpsc::channel::<Box<dyn FnOnce() -> usize + Send>>();
    let total = Arc::new(Mutex::new(0));
    let worker = thread::spawn({
        let total = total.clone();
        move || receiver.iter().for_each(|job| *total.lock().unwrap() += job())
    });
    sender.send(Box::new(move || 3)).map_err(|_| "the worker ended")?;
    drop(sender);
    worker.join().map_err(|_| "the worker failed")?;
    let mut words: Vec<_> = read(&b"a b a\nc"[..])?.into_iter().collect();
    words.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
    words.sort_by_key(|(word, _)| std::cmp::Reverse(word.clone()));
    let chunks: Vec<u32> = words.chunks(2).zip(1..).flat_map(|(chunk, n)| chunk.iter().map(move |word| word.1 as u32 * n)).collect();
    let parsed: Result<Vec<i32>, _> = "1,2,x".split(',').map(str::parse).collect();
    println!("{words:?} {chunks:?} {parsed:?} {:?} {map:?}", total.lock());
    let caught = std::panic::catch_unwind(|| u32::from_str_radix("zz", 10).unwrap_or_else(|error| panic!("{error}")));
    println!("{}", caught.is_err());
    Ok(())
}
