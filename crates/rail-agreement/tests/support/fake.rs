//! A TCPStore for tests, with the manners of both of PyTorch's servers (measured on torch 2.2 to
//! 2.15): where they differ, each does its own. A thread per connection; who waits is answered by
//! the thread that sets the key.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The default since 2.4.
    Libuv,
    /// `USE_LIBUV=0`, and the default up to 2.3.
    Legacy,
}

#[derive(Default)]
struct Shared {
    map: HashMap<Vec<u8>, Vec<u8>>,
    waiters: HashMap<Vec<u8>, Vec<Arc<Waiter>>>,
}

struct Waiter {
    missing: AtomicU64,
    stream: TcpStream,
}

/// A server, until the test ends.
pub struct Fake {
    pub address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    /// Bytes of requests that came, and connections.
    pub traffic: Arc<AtomicU64>,
    pub connections: Arc<AtomicU64>,
    /// Requests that came.
    pub requests: Arc<AtomicU64>,
}

impl Fake {
    pub fn start(manner: Manner) -> Fake {
        Fake::at("127.0.0.1:0", manner)
    }

    pub fn at(address: &str, manner: Manner) -> Fake {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let fake = Fake {
            address,
            shared: Arc::default(),
            traffic: Arc::default(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (shared, traffic, connections) = (
            fake.shared.clone(),
            fake.traffic.clone(),
            fake.connections.clone(),
        );
        let requests = fake.requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::Relaxed);
                let (shared, traffic, requests) =
                    (shared.clone(), traffic.clone(), requests.clone());
                let serve = move || {
                    drop(
                        Session {
                            stream,
                            shared,
                            manner,
                            traffic,
                            requests,
                            waiting: None,
                        }
                        .serve(),
                    )
                };
                std::thread::Builder::new()
                    .stack_size(128 << 10)
                    .spawn(serve)
                    .unwrap();
            }
        });
        fake
    }

    /// Sets a key behind everybody's back.
    pub fn set(&self, key: &str, value: &[u8]) {
        store(
            &mut self.shared.lock().unwrap(),
            format!("/{key}").into_bytes(),
            value.to_vec(),
        );
    }

    pub fn keys(&self) -> Vec<String> {
        let shared = self.shared.lock().unwrap();
        shared
            .map
            .keys()
            .map(|k| String::from_utf8(k[1..].to_vec()).unwrap())
            .collect()
    }
}

fn store(shared: &mut MutexGuard<Shared>, key: Vec<u8>, value: Vec<u8>) {
    for waiter in shared.waiters.remove(&key).unwrap_or_default() {
        if waiter.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = (&waiter.stream).write_all(&[0]);
        }
    }
    shared.map.insert(key, value);
}

struct Session {
    stream: TcpStream,
    shared: Arc<Mutex<Shared>>,
    manner: Manner,
    traffic: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    waiting: Option<(Arc<Waiter>, Vec<Vec<u8>>)>,
}

/// The end of a connection.
type Served<T> = std::io::Result<T>;

fn close<T>() -> Served<T> {
    Err(std::io::ErrorKind::ConnectionReset.into())
}

impl Session {
    fn serve(mut self) -> Served<()> {
        self.stream.set_nodelay(true)?;
        self.validate()?;
        loop {
            let mut op = [0];
            self.stream.read_exact(&mut op)?;
            self.requests.fetch_add(1, Ordering::Relaxed);
            // A client that sends half a request keeps all others waiting.
            let shared = self.shared.clone();
            let held = (self.manner == Manner::Legacy).then(|| shared.lock().unwrap());
            self.request(op[0], held)?;
        }
    }

    fn validate(&mut self) -> Served<()> {
        let mut first = [0; 5];
        let came = self.stream.read(&mut first)?;
        match self.manner {
            // What is left of one that was split is taken for a request.
            Manner::Libuv if came < 5 && first[0] == 0 => close(),
            Manner::Libuv if first[0] != 0 => self.silence(),
            Manner::Libuv if first[1..] != [0xce, 0xf7, 0x85, 0x3c] => {
                self.stream.read_exact(&mut [0])?;
                close()
            }
            Manner::Libuv => Ok(()),
            Manner::Legacy => {
                self.stream.read_exact(&mut first[came..])?;
                if first == [0, 0xce, 0xf7, 0x85, 0x3c] {
                    Ok(())
                } else {
                    close()
                }
            }
        }
    }

    /// Stays open, and never says a word.
    fn silence(&mut self) -> Served<()> {
        std::io::copy(&mut self.stream, &mut std::io::sink())?;
        close()
    }

    fn number(&mut self) -> Served<u64> {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes)?;
        self.traffic.fetch_add(8, Ordering::Relaxed);
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self, most: u64) -> Served<Vec<u8>> {
        let length = self.number()?;
        if self.manner == Manner::Libuv && length > most {
            return close();
        }
        let mut bytes = vec![0; length as usize];
        self.stream.read_exact(&mut bytes)?;
        self.traffic.fetch_add(length, Ordering::Relaxed);
        Ok(bytes)
    }

    fn key(&mut self) -> Served<Vec<u8>> {
        self.text(8 << 10)
    }

    fn value(&mut self) -> Served<Vec<u8>> {
        self.text(8 << 20)
    }

    fn keys(&mut self) -> Served<Vec<Vec<u8>>> {
        let count = self.number()?;
        if self.manner == Manner::Libuv && count > 131_072 {
            return close();
        }
        (0..count).map(|_| self.key()).collect()
    }

    fn request(&mut self, op: u8, held: Option<MutexGuard<Shared>>) -> Served<()> {
        let shared = self.shared.clone();
        let mut held = held;
        let mut lock = || held.take().unwrap_or_else(|| shared.lock().unwrap());
        match op {
            1 => {
                let (key, value) = (self.key()?, self.value()?);
                store(&mut lock(), key, value);
            }
            5 => {
                let keys = self.keys()?;
                let shared = lock();
                let there = keys.iter().all(|k| shared.map.contains_key(k));
                drop(shared);
                self.stream.write_all(&[u8::from(!there)])?;
            }
            6 => {
                let keys = self.keys()?;
                self.wait(keys, &mut lock())?;
            }
            7 => self
                .stream
                .write_all(&(lock().map.len() as u64).to_le_bytes())?,
            8 => {
                let key = self.key()?;
                let gone = lock().map.remove(&key).is_some();
                self.stream.write_all(&u64::from(gone).to_le_bytes())?;
            }
            10 => {
                let keys = self.keys()?;
                self.many(&keys, &lock())?;
            }
            11 => {
                let count = self.number()?;
                let mut pairs = Vec::new();
                for _ in 0..count {
                    pairs.push((self.key()?, self.value()?));
                }
                let mut shared = lock();
                pairs
                    .into_iter()
                    .for_each(|(key, value)| store(&mut shared, key, value));
            }
            12 => {
                let mut shared = lock();
                if let Some((waiter, keys)) = self.waiting.take() {
                    for key in keys {
                        let waiters = shared.waiters.entry(key).or_default();
                        waiters.retain(|w| !Arc::ptr_eq(w, &waiter));
                    }
                }
                self.stream.write_all(&[1])?;
            }
            _ => return close(),
        }
        Ok(())
    }

    fn many(&mut self, keys: &[Vec<u8>], shared: &MutexGuard<Shared>) -> Served<()> {
        let mut answer = Vec::new();
        for key in keys {
            let value = match (shared.map.get(key), self.manner) {
                (Some(value), _) => value.as_slice(),
                (None, Manner::Libuv) => &[],
                (None, Manner::Legacy) => return close(),
            };
            answer.extend((value.len() as u64).to_le_bytes());
            answer.extend(value);
        }
        self.stream.write_all(&answer)
    }

    fn wait(&mut self, keys: Vec<Vec<u8>>, shared: &mut MutexGuard<Shared>) -> Served<()> {
        let missing: Vec<Vec<u8>> = keys
            .into_iter()
            .filter(|k| !shared.map.contains_key(k))
            .collect();
        if missing.is_empty() {
            return self.stream.write_all(&[0]);
        }
        let stream = self.stream.try_clone()?;
        let waiter = Arc::new(Waiter {
            missing: AtomicU64::new(missing.len() as u64),
            stream,
        });
        for key in &missing {
            shared
                .waiters
                .entry(key.clone())
                .or_default()
                .push(waiter.clone());
        }
        self.waiting = Some((waiter, missing));
        Ok(())
    }
}

/// A server that does what it likes with each connection.
pub fn rude(manners: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let manners = Arc::new(manners);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let manners = manners.clone();
            std::thread::spawn(move || manners(stream));
        }
    });
    address
}

/// One byte at a time.
pub fn trickle(mut stream: TcpStream, bytes: &[u8], pause: Duration) {
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
}
