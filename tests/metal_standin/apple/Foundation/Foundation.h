// As much of Apple's Foundation as bridge.m and Metal.h name: enough to compile them for arm64, not
// to link. NSUInteger and BOOL are those of macOS on arm64.
#pragma once
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef _Bool BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
@end

__attribute__((objc_root_class))
@interface NSObject <NSObject>
+ (instancetype)alloc;
- (instancetype)init;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)text;
@property (readonly) const char *UTF8String;
@end

@interface NSError : NSObject
@property (readonly) NSString *localizedDescription;
@end
