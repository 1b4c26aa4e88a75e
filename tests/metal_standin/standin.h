/* How tests steer the software device, and what they ask it. */
#pragma once
void standin_reset(void);                 /* as at the start: checked off, seed 0, nothing fails */
void standin_checked(int on);             /* libraries that are compiled from now on */
void standin_seed(unsigned long seed);    /* the order of groups and threads; 0: their own */
void standin_simdgroups(int on);          /* of the family apple7, or mac2, which has none */
void standin_limit(unsigned long nbytes); /* the longest buffer */
void standin_fail_after(long dispatches); /* then commands fail, as if memory had run out; < 0: never */
void standin_fail_inside(long threads);   /* the first that fails runs so many of its threads */
void standin_absent(int on);              /* no device */
long standin_live(void);                  /* objects that were not released */
long standin_commits(void);
long standin_dispatches(void);
int standin_fast(void);                   /* whether any library was compiled with fast math */
