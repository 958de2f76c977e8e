// A master that does the jobs in the file (or FIFO) $JOBS, one of each line, at $WORKER, while $OWNER leads an election of etcd3.
//
// Not `client.lock()`: it leaves an empty value, which is nobody's name.

import { constants, createReadStream, openSync, statSync } from 'node:fs';
import { request } from 'node:http';
import { Socket } from 'node:net';
import { createInterface } from 'node:readline';

import { Etcd3 } from 'etcd3';

const { ETCD, LOCK, OWNER, WORKER, JOBS } = process.env;
const client = new Etcd3({ hosts: ETCD.split(',') });

/** Does a job; gives the status and why it was refused. */
function doJob(job, token) {
  return new Promise((resolve, reject) => {
    const sent = request(WORKER, { method: 'POST', headers: token, agent: false }, (answer) => {
      answer.resume();
      resolve([answer.statusCode, answer.headers['fence-reason'] ?? '']);
    });
    sent.on('error', reject);
    sent.end(job);
  });
}

/**
 * What the jobs are read from. A FIFO is waited for as a socket is: `createReadStream` would have a thread block in it, and Node does
 * not exit before that thread has got a line.
 */
function openJobs() {
  if (!statSync(JOBS).isFIFO()) return createReadStream(JOBS);
  return new Socket({ fd: openSync(JOBS, constants.O_RDONLY | constants.O_NONBLOCK), readable: true, writable: false });
}

/** Does the jobs, and begins none when the lease is lost; says whether it got to their end. */
async function work(revision, lost) {
  const token = { 'Fence-Owner': OWNER, 'Fence-Revision': revision };
  for await (const job of createInterface({ input: openJobs(), signal: lost })) {
    if (lost.aborted) return false;
    const [status, reason] = await doJob(job, token);
    console.log(`${OWNER}, revision ${revision}, ${job}: ${status} ${reason}`);
    if (status >= 300) return false;
  }
  return !lost.aborted;
}

const campaign = client.election(LOCK, 10).campaign(OWNER); // A lease of ten seconds.
const lost = new AbortController();
campaign.on('error', (error) => {
  console.log(`the lease is lost: ${error.message}`);
  lost.abort();
});
await campaign.wait().catch(() => process.exit(1));
const { kvs } = await client.get((await campaign.getCampaignKey()).toString()).exec();
const done = await work(kvs[0].create_revision, lost.signal);
await campaign.resign().catch(() => {});
process.exit(done ? 0 : 1);
